// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volumetest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Workload is a process of a container in a mount namespace that begins as a copy of its starter's. It attacks what is
// mounted at At on request.
type Workload struct {
	// User has it make the namespace in a user namespace of its own, whose root it is.
	User bool
	// Group is the control group that it joins; empty: none.
	Group string
	// At is where it mounts the directory Source, or attacks what is there; Source empty: nothing is mounted.
	At, Source string
	// Serve are arguments of the role "serve" after its first: it serves a file system of its own in Forged, has directory
	// Source of that at At, and then ends the server.
	Serve []string
	// Name is what it calls the type of that file system.
	Name string
	// Shares has its mounts spread, and Follows has those of the one that starts it spread to it.
	Shares, Follows bool
	// Copies is how many more copies of Source it mounts, below At+".more".
	Copies int
}

// Forged is where a Workload that serves has its file system.
func (w Workload) Forged() string { return w.At + ".own" }

// NameEnv is in the environment of a role "serve" that forges: what it calls the type of its file system. It does not have
// that allow other users, as the kernel takes those of other user namespaces for such.
const NameEnv = "KUBEDIAG_VOLUMETEST_NAME"

// Locks are the attributes that no process in a user namespace of its own may clear.
const Locks = sys.AttrReadOnly | sys.AttrNoSUID | sys.AttrNoDev | sys.AttrNoExec

// Attempt is how an attack on the mount went: empty texts are successes.
type Attempt struct {
	// Set is the error of setting all Locks, and Clear those of clearing one each, by name.
	Set   string
	Clear map[string]string
	// Write is the error of making the directory Pwned.
	Write string
}

// Pwned is what an attacker writes.
const Pwned = "pwned"

// Start starts it. report gives how its attack went, which it makes then, and ends it.
func (w Workload) Start(t testing.TB) (a *kerneltest.Actor, report func() Attempt) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report")
	order, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	a = kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: w.User}), "workload", file, string(order))
	return a, func() (found Attempt) {
		t.Helper()
		a.End()
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &found)
		}
		if err != nil {
			t.Fatalf("report of the attack: %v", err)
		}
		return found
	}
}

// Attack is the role of a Workload.
func Attack(args []string, ready func(string)) error {
	var w Workload
	if err := json.Unmarshal([]byte(args[1]), &w); err != nil {
		return err
	}
	if w.Group != "" {
		if err := os.WriteFile(filepath.Join(w.Group, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return err
		}
	}
	before, after := sys.Private, sys.Private
	if w.Follows {
		before, after = sys.Slave, sys.Slave
	}
	if w.Shares {
		after = sys.Shared
	}
	if err := errors.Join(sys.SetPropagation("/", before, true), w.mount(), sys.SetPropagation("/", after, true)); err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	text, err := json.Marshal(w.attack())
	if err != nil {
		return err
	}
	return os.WriteFile(args[0], text, 0o600)
}

func (w Workload) mount() error {
	if w.Source == "" {
		return nil
	}
	from := w.Source
	if len(w.Serve) > 0 {
		end, err := w.serve()
		if err != nil {
			return err
		}
		defer end()
		from = filepath.Join(w.Forged(), w.Source)
	}
	if err := errors.Join(os.MkdirAll(w.At, 0o755), sys.BindMount(from, w.At)); err != nil {
		return err
	}
	for i := range w.Copies {
		at := filepath.Join(w.At+".more", fmt.Sprint(i))
		if err := errors.Join(os.MkdirAll(at, 0o755), sys.BindMount(from, at)); err != nil {
			return err
		}
	}
	return nil
}

// serve has another process serve, until end is called.
func (w Workload) serve() (end func(), err error) {
	if err := os.MkdirAll(w.Forged(), 0o755); err != nil {
		return nil, err
	}
	return Play("serve", []string{NameEnv + "=" + w.Name}, append([]string{w.Forged()}, w.Serve...)...)
}

// attack tries what root of a user namespace may try.
func (w Workload) attack() Attempt {
	found := Attempt{Clear: map[string]string{}}
	err := sys.OnThread(func() error {
		at, err := sys.Lookup(w.At)
		if err != nil {
			return err
		}
		defer at.Close()
		found.Set = text(sys.SetMountAttr(at, Locks))
		for name, flag := range map[string]sys.MountAttr{
			"ro": sys.AttrReadOnly, "nosuid": sys.AttrNoSUID, "nodev": sys.AttrNoDev, "noexec": sys.AttrNoExec,
		} {
			found.Clear[name] = text(sys.SetMountAttr(at, Locks&^flag))
		}
		// The last attempt has left others cleared.
		_ = sys.SetMountAttr(at, sys.AttrNoSUID)
		found.Write = text(os.Mkdir(filepath.Join(w.At, Pwned), 0o755))
		return nil
	})
	if err != nil {
		found.Set = err.Error()
	}
	return found
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Play has another process play a role, with an environment of its own, until end is called, once or more. It is for roles,
// which have no test.
func Play(role string, env []string, args ...string) (end func(), err error) {
	player := exec.Command("/proc/self/exe", args...)
	player.Env, player.Stderr = append(kerneltest.RoleEnv(role), env...), os.Stderr
	in, errIn := player.StdinPipe()
	out, errOut := player.StdoutPipe()
	if err := errors.Join(errIn, errOut); err != nil {
		return nil, err
	}
	if err := player.Start(); err != nil {
		return nil, err
	}
	end = func() {
		in.Close()
		_ = player.Wait() // how it ends is all the same
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "ready") {
		end()
		return nil, fmt.Errorf("role %q says %q: %w", role, line, err)
	}
	return end, nil
}
