// Package sandbox is what a Runner needs from an engine that boots Sandboxes: root filesystems, disks, mounts and
// limits. It knows nothing of Environments, Sessions or GitHub, and nothing above it may assume containers (design §6).
package sandbox

import (
	"context"
	"encoding/json"
	"net"
	"time"
)

// ID names a Sandbox. It is 1 to 64 characters of a-z, 0-9 and "-", and begins with a letter or digit.
type ID string

// Engine boots and stops Sandboxes. Its methods may be called from many goroutines; those for one ID, and those for
// one Disk, are serialized by the engine. Every method can be repeated after a crash at any point.
type Engine interface {
	// Probe says what this host can do and, in words, what it lacks.
	Probe(ctx context.Context) (Capabilities, error)

	// Start boots s under id. If id is already up with the same Spec, it is returned as it is. If it is up with another
	// Spec, the error is ErrRunning. A stopped id goes on with the root filesystem it had, if that was made on s.Base,
	// else the error is ErrOtherBase and the caller decides whether to Renew it. The agent may need a moment more
	// until it accepts what Dial connects.
	Start(ctx context.Context, id ID, s Spec) (Sandbox, error)

	// List returns every Sandbox this engine has on the host, also those an earlier Runner process started.
	List(ctx context.Context) ([]Status, error)

	// Open finds a running Sandbox. The error is ErrNotFound if there is no such id, ErrNotRunning if it is stopped.
	Open(ctx context.Context, id ID) (Sandbox, error)

	// Stop ends all processes of id; its root filesystem and its disk stay. With a grace above zero all but the agent
	// get SIGTERM first and that long to end. Stopping what is stopped or unknown does nothing.
	Stop(ctx context.Context, id ID, grace time.Duration) error

	// Renew puts the root filesystem of a stopped id aside, so that the next Start makes a fresh one, on any Base. What is
	// aside, and the snapshots it is made on, stay until Settle; a Start on its own Base puts it back. d is id's disk. The
	// error is ErrRunning if id is up.
	Renew(ctx context.Context, id ID, d Disk) error

	// Settle ends what Renew began, once the fresh root filesystem has proven itself or has not. fresh: what is aside is
	// given up, also while id is up. Else it is put back, and the fresh one is given up; the error is ErrRunning if id is
	// up. Where nothing is aside it does nothing.
	Settle(ctx context.Context, id ID, d Disk, fresh bool) error

	// Remove gives up the root filesystem of a stopped id and forgets the id. Its disk, with all other folders, belongs
	// to the caller. The error is ErrRunning if id is up. Removing what is unknown does nothing.
	Remove(ctx context.Context, id ID) error

	// Snapshot turns the root filesystem of a stopped id into an immutable, durable Base; id and its disk are gone
	// afterwards. meta is kept with the Base as it is and comes back in Base.Meta. If a Base of that name exists
	// already, it is returned and id is left alone. What id kept in /tmp and in bound folders is no part of it.
	Snapshot(ctx context.Context, id ID, name string, meta json.RawMessage) (Base, error)

	// Base looks a snapshot up by its name, Bases lists them all, by name.
	Base(ctx context.Context, name string) (b Base, found bool, err error)
	Bases(ctx context.Context) ([]Base, error)

	// Delete deletes a snapshot. The error is ErrInUse, naming the users, while a Sandbox or another snapshot is made
	// on it. Deleting what is unknown does nothing.
	Delete(ctx context.Context, b Base) error

	// Mount gives the disk's folder on the host (for the clone), and makes the disk if it is not there. A running
	// Sandbox's disk is mounted already. What is below a bound folder was written by the Sandbox: never follow it.
	Mount(ctx context.Context, d Disk) (Mounted, error)

	// Unmount takes the folder back and returns the space of deleted files to the host. The error is ErrRunning while
	// a Sandbox uses the disk.
	Unmount(ctx context.Context, d Disk) error

	// Flush brings what was written to a mounted disk to the host's storage, and returns when it is there. It stops nothing:
	// a build calls it now and then, so that its snapshot has little left to wait for.
	Flush(ctx context.Context, d Disk) error

	// Clear deletes all that is on a disk but the root filesystem, which is Remove's, and the folders that keep names
	// ("session/workspace"), and gives the space back to the host; the disk is unmounted then. Whatever it is killed in, a
	// folder is in its place whole or not at all. The error is ErrRunning while a Sandbox uses the disk.
	Clear(ctx context.Context, d Disk, keep ...string) error

	// DeleteDisk unmounts and deletes a disk and all that is on it. The error is ErrRunning while a Sandbox uses it.
	DeleteDisk(ctx context.Context, d Disk) error
}

// Sandbox is one boot of an ID.
type Sandbox interface {
	ID() ID
	// Generation names this boot: it differs from that of every other boot of the same ID.
	Generation() string
	// Fresh says that this boot made the root filesystem: there was none.
	Fresh() bool
	// Dial opens one connection to the agent. What answers is controlled by the Sandbox's root: never trust it.
	// ECONNREFUSED means that the agent is dead.
	Dial(ctx context.Context) (net.Conn, error)
	// Done is closed when PID 1, and with it every process of this boot, has ended.
	Done() <-chan struct{}
	Usage(ctx context.Context) (Usage, error)
}

// Base is what a root filesystem starts from: unpacked image layers, and snapshots on top of them.
type Base struct {
	// Name is, for a snapshot, 1 to 128 characters of a-z, A-Z, 0-9, "-", "_" and ".", not beginning with a dot.
	Name string `json:"name"`
	// Layers are absolute folders in overlayfs form, BOTTOM FIRST, with the ids the image gave its files.
	Layers []string `json:"layers"`
	// Meta is the caller's, kept with a snapshot. It does not count when two Bases are compared.
	Meta json.RawMessage `json:"meta,omitempty"`
}

// Spec is all that a boot depends on.
type Spec struct {
	Base     Base    `json:"base"`
	Hostname string  `json:"hostname"`
	Disk     Disk    `json:"disk"`  // holds the root filesystem's own files; one Sandbox a disk
	Binds    []Bind  `json:"binds"` // folders of the disk, and shared host folders
	Limits   Limits  `json:"limits"`
	Network  Network `json:"network"`
	Nested   bool    `json:"nested"` // may run containers inside (the Environment's Docker toggle)
	Store    *Store  `json:"store,omitempty"`
}

// Store is a folder of the disk whose folders the agent may move files between at once, and bind from: an engine that can
// shows the whole of it to the agent, and to nothing else in the Sandbox. It belongs to the host, so that the names in it are
// the host's to follow; what is below them is the Sandbox's.
type Store struct {
	Folder string `json:"folder"` // a folder of the disk; a Bind's Folder in it is "folder/name"
	Own    string `json:"own"`    // name of the folder in it that is the agent's own, made if absent
}

// Disk is one sized image. Path is its own folder on the host: the engine keeps the image and its id range there.
// Size is in bytes and is a promise to the Sandbox, not space taken; a larger Size than before grows the disk the next
// time it is mounted, a smaller one is ignored.
type Disk struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

// Mounted is a disk on the host. Id 0 of the Sandbox is IDBase on the host, and so on for IDRange ids.
type Mounted struct {
	Folder string
	IDBase int
}

// IDRange is how many user and group ids each Sandbox has (facts/sandbox.md §2.4).
const IDRange = 1 << 20

// Bind shows a folder at the path Guest of the Sandbox. A Folder that doesn't begin with a slash is a folder of the disk, or one
// of its Store, made if absent and then owned by UID and GID as the Sandbox sees them; its guest path has no dot in it. An
// absolute Folder is a folder or file of the host, always read-only: what of it must not change belongs to the host's ids.
type Bind struct {
	Folder   string `json:"folder"`
	Guest    string `json:"guest"`
	ReadOnly bool   `json:"read_only,omitempty"`
	UID      int    `json:"uid,omitempty"`
	GID      int    `json:"gid,omitempty"`
}

// Limits hold for a Sandbox as a whole. CPU is in cores, Memory in bytes (swap is never used), Pids counts processes
// and threads. A part of Memory and Pids is the agent's own: see MinMemory, MinPids.
type Limits struct {
	CPU    float64 `json:"cpu"`
	Memory int64   `json:"memory"`
	Pids   int64   `json:"pids"`
}

// The least Limits a Start takes, and what of them is kept for the agent so that a bomb in the Sandbox does not end it
// (facts/sandbox.md §2.3).
const (
	MinMemory   = 192 << 20
	MinPids     = 320
	MinCPU      = 0.05
	AgentMemory = 64 << 20
	AgentPids   = 192
)

// Network is on unless Off: address translation to the outside, DNS, and nothing of the host, of other Sandboxes or of
// the refused networks.
type Network struct {
	Off bool `json:"off,omitempty"`
}

// Capabilities are what a host can do. Missing are sentences for the operator: what is missing, and what to do.
type Capabilities struct {
	Kind          string
	Nested, Quota bool
	Missing       []string
}

// Status is one line of List.
type Status struct {
	ID         ID
	Running    bool
	Generation string // of the running boot
	Spec       Spec   // as it was started last
}

// Usage is what a Sandbox has used (CPU) or uses now. Disk is what its image takes on the host, in bytes. OOMKills
// counts processes the kernel ended because Limits.Memory was reached.
type Usage struct {
	CPU          time.Duration
	Memory, Disk int64
	// DiskFree bytes and DiskFiles more files have room on its disk before its size is reached.
	DiskFree, DiskFiles int64
	Pids                int
	OOMKills            int64
	OOMEnded            bool // the Sandbox as a whole ended because Limits.Memory was reached
}
