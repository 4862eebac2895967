//go:build never

package main

import (
	_ "connectrpc.com/connect"
	_ "github.com/bmatcuk/doublestar/v4"
	_ "github.com/coder/websocket"
	_ "github.com/containerd/containerd/v2/pkg/archive"
	_ "github.com/containerd/go-runc"
	_ "github.com/creack/pty"
	_ "github.com/google/go-containerregistry/pkg/v1/remote"
	_ "github.com/google/go-containerregistry/pkg/registry"
	_ "github.com/google/go-containerregistry/pkg/v1/layout"
	_ "github.com/google/go-containerregistry/pkg/v1/tarball"
	_ "github.com/google/nftables"
	_ "github.com/google/uuid"
	_ "github.com/gorilla/mux"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/klauspost/compress/zstd"
	_ "github.com/moby/profiles/seccomp"
	_ "github.com/opencontainers/runtime-spec/specs-go"
	_ "github.com/pressly/goose/v3"
	_ "github.com/rs/zerolog"
	_ "github.com/spf13/cobra"
	_ "github.com/vishvananda/netlink"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "google.golang.org/protobuf/proto"
	_ "gopkg.in/yaml.v3"
	_ "modernc.org/sqlite"
	_ "pgregory.net/rapid"
)
