package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DockerID is the ID of dockerd among a Sandbox's commands, containerdID of the containerd that it works with.
const (
	DockerID     = "claude-hub-dockerd"
	containerdID = "claude-hub-containerd"
)

const (
	containerdSocket = "/var/run/docker/containerd/containerd.sock"
	// containerdConfig is what dockerd gives a containerd that it starts by itself.
	containerdConfig = `version = 2
root = "/var/lib/docker/containerd/daemon"
state = "/var/run/docker/containerd/daemon"
disabled_plugins = ["io.containerd.grpc.v1.cri"]

[grpc]
address = "` + containerdSocket + `"
`
	dockerSocket = "/var/run/docker.sock"
	dockerConfig = "/etc/docker/daemon.json"
	// dockerReady is how long dockerd may take until it answers; with many containers to restore it takes seconds.
	dockerReady = 60 * time.Second
	// dockerAsk bounds one question to it, but for those that it answers only when it is ready.
	dockerAsk = 5 * time.Second
	// maxDockerAnswer bounds an answer of it, in bytes: a Sandbox's root may be who answers.
	maxDockerAnswer = 1 << 20
	maxDockerNames  = 100
	maxDockerName   = 128
)

// Docker is how a Sandbox's dockerd is to run.
type Docker struct {
	User string // as Cmd.User: who may use it without being root
	// Env is its environment, as Cmd.Env: the proxies by which it pulls images. No Variable belongs there.
	Env []string
}

// DockerLeft is what Docker had when it was stopped.
type DockerLeft struct {
	// Images by their tags, or ids where they have none, and the names of containers that ran, at most 100 each.
	Images, Containers []string
	// Killed: containers did not end within their grace time, or dockerd did not.
	Killed bool
}

// docker is the agent's dockerd.
type docker struct{ mu sync.Mutex }

// dockerUp starts dockerd unless it runs, and returns when it answers.
func (a *agent) dockerUp(ctx context.Context, d Docker) error {
	if len(a.withheld) > 0 {
		// What dockerd runs would pass the filter by.
		return fail(CodeBad, "this Sandbox isn't one that containers can run in")
	}
	a.docker.mu.Lock()
	defer a.docker.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, dockerReady)
	defer cancel()
	c := a.find(DockerID)
	if c == nil || !c.running() {
		if err := a.launchDocker(ctx, d); err != nil {
			return err
		}
		c = a.find(DockerID)
	}
	for {
		if _, err := askDocker(ctx, "/_ping", dockerReady); err == nil {
			return nil
		}
		select {
		case <-c.ended:
			return fail(CodeDocker, "dockerd ended with exit code %d: %s", c.exit.Code, c.lastWords())
		case <-ctx.Done():
			return fail(CodeDocker, "dockerd did not answer within %s: %s", dockerReady, c.lastWords())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (a *agent) launchDocker(ctx context.Context, d Docker) error {
	a.endCommand(containerdID)
	// They are of an earlier boot, where /var/run isn't on /run, or of a dockerd that was killed. Its number may be anybody's by now,
	// and dockerd would not start (facts/recipes.md B23).
	for _, f := range []string{"docker.pid", "docker/containerd/containerd.pid"} {
		if err := os.Remove(filepath.Join(filepath.Dir(dockerSocket), f)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fail(CodeDocker, "what an earlier dockerd left can't be removed: %v", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(dockerSocket), 0o755); err != nil {
		return fail(CodeDocker, "dockerd can't have its socket: %v", err)
	}
	who, err := lookupUser(d.User)
	if err != nil {
		return err
	}
	set, err := configured(dockerConfig)
	if err != nil {
		return fail(CodeDocker, "dockerd can't start: %v", err)
	}
	argv := []string{"dockerd"}
	if a.gvisor {
		if err := a.gvisorForward(ctx, d.Env); err != nil {
			return err
		}
		argv = append(argv, gvisorDocker...)
		d.Env = gvisorPath(d.Env)
	}
	// What stands in both places keeps dockerd from starting.
	if parent := containersGroup(); parent != "" && !set["cgroup-parent"] {
		argv = append(argv, "--cgroup-parent="+parent)
	}
	if gid, ok := who.dockerGroup(); ok && !set["group"] {
		argv = append(argv, "--group="+strconv.Itoa(gid))
	}
	if !set["containerd"] {
		switch err := a.launchContainerd(ctx, d); {
		case err == nil:
			argv = append(argv, "--containerd="+containerdSocket)
		case errors.Is(err, ErrNotFound): // dockerd then knows another
		default:
			return err
		}
	}
	a.endCommand(DockerID)
	_, err = a.start(Cmd{ID: DockerID, Argv: argv, Env: d.Env, Full: DropOldest, unwatched: true})
	return err
}

// launchContainerd starts containerd and returns when it answers. One that dockerd starts by itself is not there yet when dockerd first calls it,
// which then waits for a second.
func (a *agent) launchContainerd(ctx context.Context, d Docker) error {
	config := filepath.Join(scriptsDir, "containerd.toml")
	err := os.MkdirAll(scriptsDir, 0o755)
	if err == nil {
		err = os.WriteFile(config, []byte(containerdConfig), 0o644)
	}
	if err != nil {
		return fail(CodeDocker, "containerd can't have its configuration: %v", err)
	}
	if _, err := a.start(Cmd{ID: containerdID, Argv: []string{"containerd", "--config", config}, Env: d.Env, Full: DropOldest, unwatched: true}); err != nil {
		return err
	}
	c := a.find(containerdID)
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", containerdSocket)
		if err == nil {
			conn.Close()
			return nil
		}
		select {
		case <-c.ended:
			return fail(CodeDocker, "containerd ended with exit code %d: %s", c.exit.Code, c.lastWords())
		case <-ctx.Done():
			return fail(CodeDocker, "containerd did not answer within %s: %s", dockerReady, c.lastWords())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// endCommand ends what is left of a command of the agent's own, and forgets it. Its children stay.
func (a *agent) endCommand(id string) {
	c := a.find(id)
	if c == nil {
		return
	}
	if a.signal(c, syscall.SIGTERM, false) == nil {
		select {
		case <-c.ended:
		case <-time.After(dockerAsk):
			a.signal(c, syscall.SIGKILL, false) //nolint:errcheck // it has just ended
			<-c.ended
		}
	}
	a.forget(c) //nolint:errcheck // it has ended
}

// configured are the settings that the image's own file has.
func configured(file string) (map[string]bool, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|nonblock, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxDockerAnswer))
	if err != nil || len(bytes.TrimSpace(b)) == 0 {
		return nil, err
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(b, &keys); err != nil {
		return nil, fmt.Errorf("%s isn't the JSON it should be: %w", file, err)
	}
	set := map[string]bool{}
	for k := range keys {
		set[k] = true
	}
	return set, nil
}

// containersGroup is where containers are counted: below the group that holds the Sandbox's limits and is its root's own. By itself
// dockerd would put them beside it, where the Sandbox may make nothing.
func containersGroup() string {
	for _, f := range cgroupFiles {
		if unix.Access(f, unix.F_OK) == nil {
			return "/user/docker"
		}
	}
	return ""
}

// dockerGroup is the group that the socket must belong to for this user: their own, unless they are root or among those whom the
// image lets use Docker.
func (a account) dockerGroup() (int, bool) {
	if a.uid == 0 {
		return 0, false
	}
	if gid, err := lookupGroup("docker"); err == nil && (gid == a.gid || slices.Contains(a.groups, gid)) {
		return 0, false
	}
	return a.gid, true
}

// dockerDown has dockerd stop its containers, each with its grace time, and end. It returns when that is so, at the latest after
// limit: then all of it is killed. Without a dockerd it does nothing.
func (a *agent) dockerDown(limit time.Duration) (left DockerLeft, err error) {
	a.docker.mu.Lock()
	defer a.docker.mu.Unlock()
	c := a.find(DockerID)
	if c == nil || !c.running() {
		return left, nil
	}
	left.Images, left.Containers = dockerHas()
	// dockerd gives each container its own time, and takes as long as the longest of them.
	if err := a.signal(c, syscall.SIGTERM, false); err != nil && !errors.Is(err, ErrEnded) {
		return left, err
	}
	select {
	case <-c.ended:
		left.Killed = c.exit.Code != 0
	case <-time.After(limit):
		left.Killed = true
		err = a.signal(c, syscall.SIGKILL, true)
	}
	a.endCommand(containerdID)
	return left, err
}

// dockerHas are Docker's images and running containers, as far as it says in time.
func dockerHas() (images, containers []string) {
	var imgs []struct {
		ID       string `json:"Id"`
		RepoTags []string
	}
	var conts []struct{ Names []string }
	ask := func(path string, into any) {
		if b, err := askDocker(context.Background(), path, dockerAsk); err == nil {
			json.Unmarshal(b, into) //nolint:errcheck // then there is nothing to tell
		}
	}
	ask("/images/json", &imgs)
	ask("/containers/json", &conts)
	for _, i := range imgs {
		tags := slices.DeleteFunc(i.RepoTags, func(t string) bool { return strings.HasPrefix(t, "<none>") })
		if len(tags) == 0 {
			tags = []string{i.ID}
		}
		images = append(images, tags...)
	}
	for _, c := range conts {
		if len(c.Names) > 0 {
			containers = append(containers, strings.TrimPrefix(c.Names[0], "/"))
		}
	}
	return images[:min(len(images), maxDockerNames)], containers[:min(len(containers), maxDockerNames)]
}

// askDocker asks dockerd at its socket. A client of its own, since net/http would double the agent.
func askDocker(ctx context.Context, path string, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", dockerSocket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	// With 1.0 the answer ends with the connection, and comes in one piece.
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.0\r\nHost: docker\r\n\r\n", path); err != nil {
		return nil, err
	}
	r := bufio.NewReader(io.LimitReader(conn, maxDockerAnswer))
	status, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if f := strings.Fields(status); len(f) < 2 || f[1] != "200" {
		return nil, fmt.Errorf("dockerd answers %q", clip(strings.TrimSpace(status), 128))
	}
	for line := status; strings.TrimSpace(line) != ""; {
		if line, err = r.ReadString('\n'); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(r)
}

// lastWords are the last lines that a command printed.
func (c *command) lastWords() string {
	const most = 600
	o := c.out
	o.mu.Lock()
	defer o.mu.Unlock()
	var b []byte
	for i, chunk := range o.chunks {
		if i == 0 {
			chunk = chunk[o.skip:]
		}
		b = append(b, chunk...)
		b = b[max(0, len(b)-4*most):]
	}
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(b), "?")), "\n")
	text := strings.Join(lines[max(0, len(lines)-3):], "\n")
	if text == "" {
		return "it said nothing"
	}
	return text[max(0, len(text)-most):]
}

// DockerUp starts the Sandbox's dockerd unless it runs already, and returns when it answers. An *Error with CodeNotFound says that the image
// has none, one with CodeDocker, in dockerd's own words, why it doesn't run.
func (c *Client) DockerUp(ctx context.Context, d Docker) error {
	b, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, err = call[struct{}](ctx, c, header{Op: "docker-up"}, b, dockerReady+CallTimeout)
	return err
}

// DockerDown has dockerd stop all containers, each with the grace time that it has of its own, and end; what is left after limit, at most 10
// minutes, is killed. What restarts by itself (docker run --restart) does so at the next DockerUp. Without a dockerd it does nothing.
func (c *Client) DockerDown(ctx context.Context, limit time.Duration) (DockerLeft, error) {
	left, err := call[DockerLeft](ctx, c, header{Op: "docker-down", GraceMS: limit.Milliseconds()}, nil, limit+CallTimeout)
	if errors.Is(err, ErrVersion) || errors.Is(err, &Error{Code: CodeBad}) {
		return DockerLeft{}, nil // an agent that is older than Docker in Sandboxes
	}
	for _, names := range []*[]string{&left.Images, &left.Containers} {
		*names = (*names)[:min(len(*names), maxDockerNames)]
		for i := range *names {
			(*names)[i] = clip((*names)[i], maxDockerName)
		}
	}
	return left, err
}
