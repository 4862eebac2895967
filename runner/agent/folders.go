package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	gopath "path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Pattern is a glob of dependency folders (envspec.Folder): below the Workspace, with ** for any number of folders. One with a
// file's name in Beside is made beside such a file where it isn't there.
type Pattern struct{ Pattern, Beside string }

// Folders are what Bind is to bind. Names in the Store are single ones; the Workspace is bound at Guest by the engine.
type Folders struct {
	Patterns  []Pattern
	User      string // owner of folders that are made, as in Cmd.User
	Guest     string // "/workspace"
	Workspace string // its name in the Store
	Own       string // name of the agent's own folder in the Store
	// Cloned: git checked the Workspace out just now, and nothing has run in it yet.
	Cloned bool `json:",omitempty"`
}

// Bound is one dependency folder as Bind found it, or left it. It is the Sandbox's word, as all that an agent says.
type Bound struct {
	Path  string // below the Workspace
	State string // of the constants below
	Err   string `json:",omitempty"` // a sentence's end, if it could not be bound; it is then as it was
}

// What became of a folder.
const (
	BoundAgain = "bound"    // kept from an earlier boot, and bound
	BoundNew   = "new"      // was there without files, or was made
	BoundMoved = "moved"    // had files, which were moved onto the disk
	Returned   = "returned" // matches no more, or git keeps files in it: its files are in the Workspace again
	LeftAlone  = "left"     // git keeps files in it
	NotBound   = "failed"
)

// Binding is the answer to Bind.
type Binding struct {
	Folders  []Bound
	Problems []string // sentences
}

const maxBindings = 4096

// Bind finds the Workspace's dependency folders, and binds each from the Session's disk, before anything else is started. A
// folder that has files already is moved onto the disk first. What can't be bound stays as it is, and is told. Bind can be
// repeated: a boot binds once, and then gives the same answer.
func (c *Client) Bind(ctx context.Context, f Folders) (Binding, error) {
	b, err := json.Marshal(f)
	if err != nil {
		return Binding{}, err
	}
	got, err := call[Binding](ctx, c, header{Op: "bind", Payload: len(b)}, b, CallTimeout)
	got.Folders = got.Folders[:min(len(got.Folders), maxBindings)]
	got.Problems = got.Problems[:min(len(got.Problems), maxProblems)]
	for i := range got.Problems {
		got.Problems[i] = clip(got.Problems[i], maxProblem)
	}
	for i := range got.Folders {
		b := &got.Folders[i]
		b.Path, b.State, b.Err = clip(b.Path, 4096), clip(b.State, 16), clip(b.Err, maxProblem)
	}
	return got, err
}

// folders is what an agent with a Store knows of dependency folders.
type folders struct {
	store *store

	mu        sync.Mutex
	done      *Binding
	asked     []Pattern
	patterns  patterns
	guest     string // where the Workspace is
	workspace int    // that folder, as everything in the Sandbox sees it
	mount     uint64 // the mount it is on
	below     int    // the same folder, as the store sees it
	kept      map[inode]*kept
	at        map[string]int // names of the places where something is bound, counted
	names     atomic.Pointer[names]
}

// names are those that a call must name for the agent to look closer.
type names struct {
	patterns patterns
	at       map[string]struct{}
}

func (n *names) has(name []byte) bool {
	if n == nil {
		return false
	}
	if _, ok := n.at[string(name)]; ok {
		return true
	}
	return n.patterns.may(name)
}

func newFolders(s *store) *folders {
	return &folders{store: s, workspace: -1, below: -1, kept: map[inode]*kept{}, at: map[string]int{}}
}

// bindAll is Bind's.
func (f *folders) bindAll(rq Folders) (Binding, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done != nil {
		return *f.done, nil
	}
	who, err := lookupUser(rq.User)
	if err != nil {
		return Binding{}, err
	}
	for _, name := range []string{rq.Workspace, rq.Own} {
		if name == "" || strings.Contains(name, "/") {
			return Binding{}, fail(CodeBad, "a folder of the Store has a plain name, not %q", clip(name, 64))
		}
	}
	if err := f.open(rq); err != nil {
		return Binding{}, fail(CodeInternal, "dependency folders can't be bound: %v", err)
	}
	var bad []string
	f.asked = rq.Patterns
	f.patterns, bad = newPatterns(rq.Patterns)
	all, err := f.store.list()
	if err != nil {
		bad = append(bad, err.Error())
	}
	out := Binding{Folders: []Bound{}}
	if s, ok := f.store.takePlan(rq.Patterns, all); len(f.patterns) > 0 || len(all) > 0 {
		if !ok && rq.Cloned && len(all) == 0 {
			s, ok = f.patterns.cloned(f.below)
		}
		if !ok {
			s = f.survey(all)
		}
		out = f.settleAll(s, all, who)
	}
	out.Problems = append(bad, out.Problems...)
	f.publish()
	f.done = &out
	return out, nil
}

// leave has the next boot know what it would have to look for, after all that can change it has ended.
func (f *folders) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done == nil {
		return
	}
	all, err := f.store.list()
	if err != nil || len(f.patterns) == 0 && len(all) == 0 {
		return
	}
	if s := f.survey(all); !s.full && len(s.problems) == 0 && s.looked >= worthAPlan {
		f.store.leavePlan(f.asked, s) //nolint:errcheck // the next boot looks, then
	}
}

func (f *folders) open(rq Folders) error {
	own, err := f.store.open(rq.Own, unix.O_PATH)
	if err != nil {
		return err
	}
	below, err := f.store.open(rq.Workspace, unix.O_PATH)
	if err != nil {
		return errors.Join(err, unix.Close(own))
	}
	ws, err := unix.Open(rq.Guest, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return errors.Join(err, unix.Close(own), unix.Close(below))
	}
	f.store.keep, f.below, f.workspace, f.guest = own, below, ws, rq.Guest
	a, st, err := inodeOf(ws, "")
	b, _, berr := inodeOf(below, "")
	if err = errors.Join(err, berr); err != nil {
		return err
	}
	if a != b {
		return fmt.Errorf("%s is not the Session's Workspace", rq.Guest)
	}
	f.mount = st.Mnt_id
	return nil
}

// survey is what a Workspace has of dependency folders.
type survey struct {
	found    []found
	problems []string
	full     bool // there is more
	looked   int  // folders that were looked into
}

func (s *survey) sort() {
	slices.SortFunc(s.found, func(a, b found) int { return strings.Compare(a.rel, b.rel) })
}

// survey looks through the Workspace.
func (f *folders) survey(all []*kept) survey {
	w := newWalk(f.patterns, all)
	w.run(f.below)
	f.untouchable(w)
	f.inside(w, all)
	s := survey{found: w.out, problems: w.problems, full: w.full, looked: w.folders}
	s.sort()
	return s
}

// inside adds what was bound in folders that are now bound, or left alone, as a whole: its files belong back there first, or they
// would be hidden.
func (f *folders) inside(w *walk, all []*kept) {
	placed := map[*kept]bool{}
	for _, x := range w.out {
		placed[x.kept] = true
	}
	var unplaced []*kept
	for _, k := range all {
		if !k.empty && !placed[k] {
			unplaced = append(unplaced, k)
		}
	}
	if len(unplaced) == 0 {
		return
	}
	for _, x := range w.out {
		if !x.has || x.kept != nil {
			continue
		}
		fd, err := openBeneath(f.below, x.rel, unix.O_PATH)
		if err != nil {
			w.problem("%s can't be opened: %v", pathText(x.rel), err)
			continue
		}
		in := newWalk(nil, unplaced)
		in.run(fd)
		unix.Close(fd)
		for _, y := range in.out {
			y.rel = x.rel + "/" + y.rel
			w.out = append(w.out, y)
		}
	}
}

// settleAll brings all that was found to where it belongs.
func (f *folders) settleAll(s survey, all []*kept, who account) Binding {
	out := Binding{Folders: []Bound{}, Problems: s.problems}
	placed := map[*kept]bool{}
	for _, x := range s.found {
		placed[x.kept] = true
	}
	lost := map[string]*kept{} // those without a place, by the last one they had
	for _, k := range all {
		if !placed[k] {
			lost[k.at.path] = k
		}
	}
	// What goes back comes first: it may be in a folder that is moved as a whole.
	slices.SortStableFunc(s.found, func(a, b found) int { return b.back() - a.back() })
	for _, x := range s.found {
		if len(out.Folders) == maxBound {
			out.Problems = append(out.Problems, fmt.Sprintf("there are more than %d dependency folders: the rest stay in the Workspace", maxBound))
			break
		}
		if b := f.settle(x, lost, who); b.State != "" {
			out.Folders = append(out.Folders, b)
		}
	}
	for _, k := range all {
		// Without files and without a place there is nothing to keep, if all places were looked at.
		if !k.bound && k.dir >= 0 && (!k.empty || placed[k] || s.full || f.store.forget(k) != nil) {
			k.close()
		}
	}
	slices.SortFunc(out.Folders, func(a, b Bound) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// untouchable are the folders that git keeps files in. Where git's index can't be read, they are all that have files.
func (f *folders) untouchable(w *walk) {
	repos := map[string][]string{}
	for _, x := range w.out {
		repos[x.repo] = append(repos[x.repo], x.rel)
	}
	left := map[string]bool{}
	for repo, rels := range repos {
		prefix := ""
		if repo != "" {
			prefix = repo + "/"
		}
		var names []string
		for _, r := range rels {
			names = append(names, strings.TrimPrefix(r, prefix))
		}
		yes, err := tracked(f.below, repo, names)
		if err != nil {
			w.problem("what git keeps in %s can't be told (%v), so that its dependency folders with files stay in the Workspace", pathText(repo), err)
			for _, n := range names {
				left[prefix+n] = true
			}
			continue
		}
		for n := range yes {
			left[prefix+n] = true
		}
	}
	for i := range w.out {
		w.out[i].left = left[w.out[i].rel]
	}
}

// settle brings one folder to where it belongs.
func (f *folders) settle(x found, lost map[string]*kept, who account) Bound {
	out := Bound{Path: x.rel}
	not := func(err error) Bound {
		out.State, out.Err = NotBound, err.Error()
		return out
	}
	dir, name := split(x.rel)
	parent, err := openBeneath(f.below, dir, unix.O_PATH)
	if err != nil {
		return not(err)
	}
	defer unix.Close(parent)
	k := x.kept
	if k != nil {
		if is, _, err := inodeOf(parent, name); err != nil || is != k.at.inode {
			return not(errors.Join(err, errors.New("another folder is at its place")))
		}
		empty, err := isEmpty(parent, name)
		if err != nil {
			return not(err)
		}
		if !empty {
			// Something has put files where only ours is seen: they are what a person sees, so they count.
			if k.empty {
				if err := f.store.forget(k); err != nil {
					return not(err)
				}
			}
			k = nil
		}
	}
	if k != nil && x.back() > 0 {
		if err := f.store.giveBack(k, parent, name); err != nil {
			return not(err)
		}
		out.State = Returned
		return out
	}
	if !x.match {
		return Bound{}
	}
	if x.left {
		if x.has {
			out.State = LeftAlone
		}
		return out
	}
	if k == nil {
		return f.take(x, parent, name, lost[x.rel], who)
	}
	if err := f.bind(k, x.rel); err != nil {
		return not(err)
	}
	out.State = BoundAgain
	return out
}

// take takes in a folder that was in the Workspace until now, or makes it. old was bound there once, and has lost its place.
func (f *folders) take(x found, parent int, name string, old *kept, who account) Bound {
	out := Bound{Path: x.rel, State: BoundNew}
	not := func(err error) Bound {
		out.State, out.Err = NotBound, err.Error()
		return out
	}
	if !x.has {
		err := makeFolder(parent, name, who)
		if errors.Is(err, unix.EEXIST) {
			return Bound{} // a link or a file
		}
		if err != nil {
			return not(err)
		}
	}
	empty, err := isEmpty(parent, name)
	if err != nil {
		return not(err)
	}
	if empty && old != nil && !old.empty {
		if old.at.inode, _, err = inodeOf(parent, name); err != nil {
			return not(err)
		}
		if err := errors.Join(old.write(), f.bind(old, x.rel)); err != nil {
			return not(err)
		}
		out.State = BoundAgain
		return out
	}
	k, err := f.store.adopt(parent, name, x.rel)
	if err != nil {
		return not(err)
	}
	if err := f.bind(k, x.rel); err != nil {
		return not(errors.Join(err, f.store.giveBack(k, parent, name)))
	}
	if !empty {
		out.State = BoundMoved
	}
	return out
}

func makeFolder(parent int, name string, who account) error {
	if err := unix.Mkdirat(parent, name, 0o755); err != nil {
		return err
	}
	return unix.Fchownat(parent, name, who.uid, who.gid, unix.AT_SYMLINK_NOFOLLOW)
}

// bind binds k at its place, which is at rel.
func (f *folders) bind(k *kept, rel string) error {
	to, err := openBeneath(f.workspace, rel, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	return f.bindOver(k, to, gopath.Base(rel))
}

func (f *folders) bindOver(k *kept, to int, name string) error {
	if err := f.store.bind(k, to); err != nil {
		return err
	}
	f.kept[k.data] = k
	f.at[name]++
	return nil
}

// unbind takes a mount away; root is open at its root, and name is what its place is called.
func (f *folders) unbind(k *kept, root int, name string) error {
	if err := k.unbind(root); err != nil {
		return err
	}
	delete(f.kept, k.data)
	if f.at[name]--; f.at[name] <= 0 {
		delete(f.at, name)
	}
	return nil
}

// publish has calls with the names of now looked at.
func (f *folders) publish() {
	n := &names{patterns: f.patterns, at: make(map[string]struct{}, len(f.at))}
	for name := range f.at {
		n.at[name] = struct{}{}
	}
	f.names.Store(n)
}
