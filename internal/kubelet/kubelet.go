// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubelet reads the kubelet's directories, and finds the kubelet of the machine that runs the pods in question.
//
// A kubelet keeps everything about its pods below its root directory, by default /var/lib/kubelet. It does so in
// its own mount namespace, which need not be that of process 1. So the package finds the kubelet's process, and
// reads the root from its arguments. If this program runs in a pod, its kubelet has the directory of
// that pod, and has bound the file etc-hosts in it into the container. Any process may be called as a kubelet is,
// and make such a directory.
//
// It changes no file. It keeps no descriptor open: a namespace is entered again for each use. It rests on the layout in
// kubernetes/pkg/kubelet/kubelet_getters.go and pkg/volume/util/subpath, which has been the same since 1.10, and on
// proc(5).
package kubelet

import (
	"context"
	"errors"
	"path"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// DefaultRoot is the root directory of a kubelet by default.
const DefaultRoot = "/var/lib/kubelet"

// ErrPodNotFound is wrapped in the error of a source of pods that does not have the pod.
var ErrPodNotFound = errors.New("pod not found")

// Pods is a source of pods: the agent's cache, or the demo's memory.
type Pods interface {
	// Pod returns the pod as it is known now. The caller does not change it.
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
}

// PodCache knows the pods of this node.
type PodCache interface {
	// PodByUID returns the pod as it is known now; nil if it is not known. The caller does not change it.
	PodByUID(uid string) *corev1.Pod
}

// FreshPods is a source of pods that remembers them, and can read them again.
type FreshPods interface {
	// FreshPod is Pod without the memory.
	FreshPod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
}

// Locator finds the kubelet of this node: a Finder, or a Node that is known already.
type Locator interface {
	Node(ctx context.Context) (*Node, error)
}

// Node is one kubelet's place on the machine. It is a plain value that holds no descriptor.
type Node struct {
	Layout
	// PID is the kubelet's process. 0 means the caller's own mount namespace.
	PID int
	// Program is the file of the kubelet's program as the caller can open it. Empty: the program of the process.
	Program string
	// Since is when the kubelet has started. Zero: when its process has.
	Since time.Time

	process candidateProcess
	tables  *readTables // nil: each call reads the table of its moment
	ahead   *readAhead  // nil: no table was read ahead
}

// readTables are mounts that are read at their first use, and stay as they were.
type readTables struct {
	// table is the mount table of the kubelet's process, unique has the numbers of its mounts that are never used again.
	table  func() (*mountinfo.Table, error)
	unique func() map[int]uint64
	pass   func() *mountns.Pass

	mu      sync.Mutex
	volumes map[string][]Volume // by UID of the pods that were listed
}

// ReadOnce returns the node with a mount table that is read once, at its first use. It is for one survey that changes no
// mount: the kernel takes a second to write the table of some thousand mounts that are stacked at one place.
func (n *Node) ReadOnce() *Node {
	once := *n
	once.tables = &readTables{
		table: sync.OnceValues(func() (*mountinfo.Table, error) {
			if table := n.ahead.take(); table != nil {
				return table, nil
			}
			return mountns.Table(n.PID)
		}),
		unique: sync.OnceValue(func() (numbers map[int]uint64) { // empty if the numbers cannot be read
			if ns, err := n.Namespace(); err == nil {
				_ = ns.Do(func() (err error) {
					numbers, err = mountns.UniqueIDs()
					return err
				})
			}
			return numbers
		}),
		pass: sync.OnceValue(func() *mountns.Pass {
			ns, err := once.Namespace()
			table, errTable := once.tables.table()
			if err != nil || errTable != nil {
				return mountns.NewPass(mountns.Namespace{}, nil)
			}
			return mountns.NewPass(ns, table)
		}),
	}
	return &once
}

// Live returns the node with tables that are read at each call: the reverse of ReadOnce.
func (n *Node) Live() *Node {
	live := *n
	live.tables = nil
	return &live
}

// Pass returns the pass over the mounts of the machine that all searches share. It is nil if the node is not ReadOnce: then each
// search makes its own.
func (n *Node) Pass() *mountns.Pass {
	if n.tables == nil {
		return nil
	}
	return n.tables.pass()
}

// UniqueID returns the number of a mount of the kubelet's namespace that is never used again, by its number in mountinfo. It is 0
// if the kernel has no such numbers (before 6.8), or if the node is not ReadOnce: then the callers read it.
func (n *Node) UniqueID(mount int) uint64 {
	if n.tables == nil {
		return 0
	}
	return n.tables.unique()[mount]
}

// TableInside returns the mount table of the kubelet's mount namespace. It is called in there, see Do.
func (n *Node) TableInside() (*mountinfo.Table, error) { return n.tableOf(0) }

// readTable returns the mount table of a node that is ReadOnce; nil if it is none, or if the table cannot be read.
func (n *Node) readTable() *mountinfo.Table {
	if n.tables == nil {
		return nil
	}
	table, err := n.tables.table()
	if err != nil {
		return nil
	}
	return table
}

// KnownTable returns the mount table that a node that is ReadOnce has read, if ns is its namespace; nil otherwise.
func (n *Node) KnownTable(ns mountns.Namespace) *mountinfo.Table {
	if own, err := n.Namespace(); err != nil || !ns.Same(own) {
		return nil
	}
	return n.readTable()
}

// View looks up paths in the kubelet's mount namespace. Its methods are called in there, see Do.
func (n *Node) View() mountns.View { return mountns.View{Known: n.readTable()} }

// tableOf returns the mount table of the kubelet's process, which is pid, or of the calling thread for 0.
func (n *Node) tableOf(pid int) (*mountinfo.Table, error) {
	if n.tables != nil {
		return n.tables.table()
	}
	return mountns.Table(pid)
}

// Local returns a node without a kubelet process: root as the caller sees it, in the caller's own mount namespace.
func Local(root string) (*Node, error) {
	n := &Node{Layout: Layout{Root: root}}
	return n, n.resolve("")
}

// Namespace returns the mount namespace of the kubelet now.
func (n *Node) Namespace() (mountns.Namespace, error) {
	if n.PID == 0 {
		return mountns.Self()
	}
	return mountns.Of(n.PID)
}

// InFirstNamespace reports whether the kubelet's mount namespace is that of process 1. It is false if that cannot be read.
func (n *Node) InFirstNamespace() bool {
	own, err := n.Namespace()
	first, errFirst := mountns.Of(1)
	return err == nil && errFirst == nil && own.Same(first)
}

// OwnedMounts is Namespace with a process in it, by which a process of ours finds it, too, and with the user namespace
// that owns it, and the mount table of that process. Without the right to read the owner, only reading is possible.
func (n *Node) OwnedMounts() (mountns.Namespace, *mountinfo.Table, error) {
	ns, err := n.Namespace()
	if err == nil && ns.PID == 0 {
		ns.PID, err = sys.OwnPID()
	}
	if err != nil {
		return mountns.Namespace{}, nil, err
	}
	if owned, err := ns.Owned(); err == nil {
		ns = owned
	}
	table, err := n.tableOf(ns.PID)
	return ns, table, err
}

// ReadMounts returns the text of the kubelet's mountinfo. The caller does not change it.
func (n *Node) ReadMounts() ([]byte, error) {
	if text := n.ahead.unused(); text != nil {
		return text, nil
	}
	return mountns.Read(n.PID, nil)
}

// Mounts returns the kubelet's mount table.
func (n *Node) Mounts(ctx context.Context) (*mountinfo.Table, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return n.tableOf(n.PID)
}

// Do runs fn in the kubelet's mount namespace, see mountns.Namespace.Do. fn is not interrupted when ctx is done.
func (n *Node) Do(ctx context.Context, fn func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ns, err := n.Namespace()
	if err != nil {
		return err
	}
	return ns.Do(fn)
}

// String names the node for people.
func (n *Node) String() string {
	if n.PID == 0 {
		return "kubelet root " + strconv.Quote(n.Root)
	}
	return "kubelet " + strconv.Itoa(n.PID) + " with root " + strconv.Quote(n.Root)
}

// Node returns n itself, or n as the pass of ctx has it: it is a Locator.
func (n *Node) Node(ctx context.Context) (*Node, error) { return n.inPass(ctx), nil }

// passKey is the key of a pass in a context.
type passKey struct{}

// onePass is the node that all who look within a pass are given.
type onePass struct {
	mu       sync.Mutex
	of, once *Node
}

// InOnePass returns a context within which all Locators give one node that is ReadOnce. It is for several looks that change no mount.
func InOnePass(ctx context.Context) context.Context {
	return context.WithValue(ctx, passKey{}, &onePass{})
}

// inPass is n, or n with the tables of the pass that ctx is of.
func (n *Node) inPass(ctx context.Context) *Node {
	p, _ := ctx.Value(passKey{}).(*onePass)
	if p == nil || n == nil || n.tables != nil {
		return n
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of != n { // the kubelet may be another process by now
		p.of, p.once = n, n.ReadOnce()
	}
	return p.once
}

// Elsewhere returns a node of another machine: it gives the paths of that kubelet, and its files may not be read. pods is
// the directory of the pods.
func Elsewhere(root, pods string) *Node {
	if pods != "" {
		pods = path.Clean(pods)
	}
	return &Node{Layout: Layout{Root: root, podsDir: pods}}
}

// WorkloadOf returns the controller that owns a pod, as the pod names it: of a Deployment it is the ReplicaSet. It is empty if
// the pod has no controller.
func WorkloadOf(pod *corev1.Pod) fault.Workload {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return fault.Workload{}
	}
	return fault.Workload{Kind: owner.Kind, Name: owner.Name}
}
