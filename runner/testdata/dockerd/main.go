// A stand-in for dockerd, and for docker: it answers at its socket that it is well, and has one image.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	if filepath.Base(os.Args[0]) == "docker" {
		fmt.Println("a stand-in for docker")
		return
	}
	if err := serve(); err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
}

func serve() error {
	if _, err := os.Stat("/workspace/broken"); err == nil {
		return fmt.Errorf("failed to start daemon: the stand-in is broken")
	}
	// As the real one, though this one always leaves it behind.
	if _, err := os.Stat("/var/run/docker.pid"); err == nil {
		return fmt.Errorf("failed to start daemon: ensure docker is not running or delete /var/run/docker.pid")
	}
	if err := os.WriteFile("/var/run/docker.pid", []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile("/var/lib/docker/arguments", []byte(strings.Join(os.Args[1:], " ")), 0o644); err != nil {
		return err
	}
	os.Remove("/var/run/docker.sock")
	l, err := net.Listen("unix", "/var/run/docker.sock")
	if err != nil {
		return err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/images/json":
			fmt.Fprint(w, `[{"Id": "sha256:1", "RepoTags": ["<none>:<none>"]}, {"Id": "sha256:2", "RepoTags": ["db:1", "db:2"]}]`)
		case "/containers/json":
			fmt.Fprint(w, `[{"Names": ["/db"]}]`)
		default:
			fmt.Fprint(w, "OK")
		}
	}))
	<-ended
	return nil
}
