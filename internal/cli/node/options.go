// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// nodeOptions are the flags that choose the kubelet and its node.
type nodeOptions struct {
	root string
	pid  int
	proc string // no flag: where the process file system is; empty: /proc
	// readAhead is no flag: whether the mount table is read while the pods are. It is for one look, before which nothing is changed.
	readAhead bool
}

func (o *nodeOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.root, "kubelet-root", "", "root directory of the kubelet (default: that of the running kubelet); where no kubelet that runs\nserves it, it is looked at in the mount namespace of this shell")
	f.IntVar(&o.pid, "kubelet-pid", 0, "process id of the kubelet (default: kubediag finds it)")
}

// flagsText are the flags as they can be typed again, with a space before each.
func (o *nodeOptions) flagsText() (text string) {
	if o.root != "" {
		text += " " + fault.Quote("--kubelet-root="+o.root)
	}
	if o.pid != 0 {
		text += fmt.Sprintf(" --kubelet-pid=%d", o.pid)
	}
	return text
}

// podsFlag is the flag with which other verbs read the same file of pods, with a space before it. Pods that came by
// standard input are gone by then.
func (o *scanOptions) podsFlag() string {
	if o.pods == "" || o.pods == "-" {
		return ""
	}
	return " " + fault.Quote("--pods="+o.pods)
}

func (o *nodeOptions) validate() error {
	if len(o.root) > 1 {
		o.root = strings.TrimSuffix(o.root, "/") // with which a shell completes it
	}
	if o.root != "" {
		if err := checkAbsolute(o.root); err != nil {
			return fmt.Errorf("--kubelet-root=%q: %w", o.root, err)
		}
	}
	if o.pid < 0 {
		return fmt.Errorf("--kubelet-pid=%d: must not be negative", o.pid)
	}
	return nil
}

// checkAbsolute refuses paths that the agent refuses.
func checkAbsolute(name string) error {
	if !filepath.IsAbs(name) || filepath.Clean(name) != name {
		return errors.New("must be an absolute path without . and .. in it")
	}
	return nil
}

// podUIDEnv names the variable that config/agent/daemonset.yaml sets to the UID of the pod.
const podUIDEnv = "POD_UID"

// findNode is the kubelet's, or the caller's own if no kubelet serves the root directory. In a pod that knows its UID, as the agent's,
// it is the kubelet that runs this pod, as the machine may have several. If none does, as after chroot, it is found as elsewhere.
func (o nodeOptions) findNode(ctx context.Context) (kubelet.LocalNode, error) {
	uid := os.Getenv(podUIDEnv)
	if o.root != "" || o.pid != 0 {
		uid = ""
	}
	at, err := o.findNodeOf(ctx, uid)
	if uid != "" && errors.Is(err, kubelet.ErrNotFound) {
		at, err = o.findNodeOf(ctx, "")
	}
	if own := os.Geteuid(); own != 0 && errors.Is(err, kubelet.ErrNotFound) {
		return at, fmt.Errorf("%w: user %d may not look for it: type sudo before the command, or %s", kubelet.ErrNotFound, own, asRootRemedy)
	}
	return at, err
}

// findNodeOf is findNode where the kubelet runs the pod with the UID. Empty: any.
func (o nodeOptions) findNodeOf(ctx context.Context, uid string) (kubelet.LocalNode, error) {
	finder := kubelet.Finder{Root: o.root, PID: o.pid, Proc: o.proc, PodUID: uid}
	if !processesHidden() { // else a kubelet may run that is not seen
		finder.Default = kubelet.DefaultRoot
	}
	return finder.NodeOrLocal(ctx)
}

// nodeNotes are the assumptions behind the choice of a kubelet, and the sources that did not answer in time.
func nodeNotes(root string, c kubelet.LocalNode) (list []string) {
	for _, what := range c.Silent {
		list = append(list, fmt.Sprintf("waited up to %s for %s, in vain", kubelet.SearchTimeout, what))
	}
	if c.Node == nil || c.Node.PID != 0 || len(c.Skipped) == 0 {
		return list
	}
	return append(list, fmt.Sprintf("no kubelet that serves %q was seen: kubediag used the mount namespace of this shell, and assumed nothing "+
		"about the kubelet. Seen: %s. If one of them serves it, name it with --kubelet-pid", root,
		strings.Join(c.Skipped, ", ")))
}

// scanSite is the node of a scan, and the specs of its pods that were given.
type scanSite struct {
	local kubelet.LocalNode
	specs podFile
	start time.Time // of the search for it
}

func (o scanOptions) newSite(ctx context.Context, stdin io.Reader) (at scanSite, err error) {
	at.start = time.Now()
	local, unknown := o.findNode(ctx)
	if unknown == nil && o.readAhead {
		local.Node.ReadAhead()
	}
	if o.pods != "" {
		if at.specs, err = readPods(ctx, o.pods, stdin); err != nil {
			return at, err
		}
	}
	if o.pods == "-" { // the wait for the program that writes them does not count
		at.start = time.Now()
	}
	at.local = local
	return at, unknown
}

// scanOrigin is where and when a scan has looked, and from where.
type scanOrigin struct {
	Node string    `json:"node"`
	Time time.Time `json:"time"`
	// Blind is whether the caller lacks the privileges to see the mounts and files of others.
	Blind bool `json:"blind,omitempty"`
	// Caller is part of the lines to paste. So it is never read, not even from the bundle that says who has seen it.
	Caller fault.Caller `json:"-"`
}

// nodeNameEnvs name the variables that have the name of the node, in the order in which the agent takes them:
// config/agent/daemonset.yaml sets the second.
var nodeNameEnvs = []string{"KUBEDIAG_NODE_NAME", "NODE_NAME"}

// machineName is the name of the node: that which a pod was given, as a container has a host name of its own, or that of
// the machine.
func machineName() string {
	for _, variable := range nodeNameEnvs {
		if name := os.Getenv(variable); len(validation.IsDNS1123Subdomain(name)) == 0 {
			return name
		}
	}
	if name, err := os.Hostname(); err == nil {
		return name
	}
	return "this node"
}

// newCaller is the shell in which commands against the faults are typed.
func (s *scan) newCaller(faults []fault.Finding, o scanOptions) (c fault.Caller) {
	if len(faults) == 0 {
		return c
	}
	c.Flags, c.Pods = o.flagsText(), o.podsFlag()
	if s.node.PID == 0 {
		return c
	}
	own, err := mountns.Self()
	switch {
	case err == nil && own.Inode == s.looked.Kubelet.MountNamespace:
	case s.node.InFirstNamespace():
		c.Enter = fault.EnterFirst
	default:
		c.Enter = fault.EnterNever
	}
	return c
}
