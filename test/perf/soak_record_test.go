// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package perf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/internal/cri"
)

// update is the record of one update of a volume.
type update struct {
	renamed  time.Time // when the kubelet had renamed ..data
	removed  time.Time // when it had removed the old directory, and the bind had become stale
	replaced time.Time // when the sentinel had replaced the bind; zero: not yet
}

// window is for how long a start would have met a stale bind.
func (u update) window() time.Duration { return max(0, u.replaced.Sub(u.removed)) }

func (u update) String() string {
	const clock = "15:04:05.000000"
	return fmt.Sprintf("..data renamed at %s, old directory removed at %s, bind replaced at %s, %v later", u.renamed.Format(clock),
		u.removed.Format(clock), u.replaced.Format(clock), u.window())
}

// place is a volume and the one bind of it.
type place struct {
	volume, point string
	renamed       time.Time
	updates       []update
	stale         bool
}

// recorder notes when volumes are written and their binds replaced, on a thread that no other keeps from the processor.
type recorder struct {
	mu      sync.Mutex
	inotify int
	mounts  watch
	places  map[int]*place // by watch
	failing map[string]cri.Container
}

func newRecorder(b *testing.B, s *soak) *recorder {
	b.Helper()
	r := &recorder{places: map[int]*place{}, failing: map[string]cri.Container{}, mounts: newWatch(b)}
	var err error
	r.inotify, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(b, err)
	for _, p := range s.pods {
		for _, name := range names() {
			at := &place{volume: s.volume(p, name), point: s.point(p, name)}
			n, err := unix.InotifyAddWatch(r.inotify, at.volume, unix.IN_MOVED_TO|unix.IN_DELETE)
			must(b, err)
			r.places[n] = at
		}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: no other goroutine gets a thread of this kind
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
		for {
			select {
			case <-stop:
				return
			default:
				r.listen()
			}
		}
	}()
	b.Cleanup(func() {
		close(stop)
		<-done
		r.mounts.close()
		_ = unix.Close(r.inotify)
	})
	return r
}

// listen waits for the next events and notes them.
func (r *recorder) listen() {
	patience := unix.NsecToTimespec((100 * time.Millisecond).Nanoseconds())
	if r.anyStale() {
		patience = unix.NsecToTimespec(glance.Nanoseconds()) // poll says so before it can be seen
	}
	fds := []unix.PollFd{{Fd: int32(r.inotify), Events: unix.POLLIN}, {Fd: int32(r.mounts), Events: unix.POLLPRI}}
	if _, err := unix.Ppoll(fds, &patience, nil); err != nil && !errors.Is(err, unix.EINTR) {
		panic(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	buf := make([]byte, 16<<10)
	n, _ := unix.Read(r.inotify, buf)
	for buf = buf[:max(0, n)]; len(buf) > 0; {
		size := unix.SizeofInotifyEvent + int(buf[12]) // names are short
		name := strings.TrimRight(string(buf[unix.SizeofInotifyEvent:size]), "\x00")
		r.note(r.places[int(buf[0])|int(buf[1])<<8], name, now)
		buf = buf[size:]
	}
	for _, at := range r.places {
		if at.stale && bound(at.point) {
			at.stale = false
			at.updates[len(at.updates)-1].replaced = time.Now()
		}
	}
}

// note takes in that an entry of a volume was renamed or removed.
func (r *recorder) note(at *place, name string, now time.Time) {
	switch {
	case name == "..data":
		at.renamed = now
	case strings.HasPrefix(name, "..2"):
		at.updates = append(at.updates, update{renamed: at.renamed, removed: now})
		at.stale = true
	}
}

func (r *recorder) anyStale() bool {
	for _, at := range r.places {
		if at.stale {
			return true
		}
	}
	return false
}

// bound reports whether a file that has a name is bound at point.
func bound(point string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, point, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, unix.STATX_NLINK, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 && st.Nlink > 0
}

// forget begins a new list of updates.
func (r *recorder) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.places {
		at.updates, at.stale = nil, false
	}
	clear(r.failing)
}

// updatesOf counts the updates of the volumes of a pod.
func (r *recorder) updatesOf(p *soakPod) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.places {
		if strings.Contains(at.volume, p.uid) {
			n += len(at.updates)
		}
	}
	return n
}

// failed notes the runtime's record of a container that could not be started.
func (r *recorder) failed(record cri.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failing[record.ID] = record
}

// cause is why a start failed.
type cause string

const (
	byTable   cause = "by-mount-table" // the kubelet gave up reading a mount table that changed four times, and asked no runtime
	byRemoval cause = "by-removal"     // the kubelet itself found what it was to bind removed, and asked no runtime
	inWindow  cause = "in-window"      // the runtime was at work while the bind was stale
	other     cause = "other"
)

var causes = []cause{byTable, byRemoval, inWindow, other}

// explain says why a start failed, from the times of the updates of its volume.
func (r *recorder) explain(f failure, volume string) (cause, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var updates []update
	for _, at := range r.places {
		if at.volume == volume {
			updates = at.updates
		}
	}
	var last update // the one that was begun last before the failure
	for _, u := range updates {
		if u.removed.Before(f.at) {
			last = u
		}
	}
	record, made := cri.Container{}, false
	for _, c := range r.failing {
		if filepath.Base(volume) == c.Name && strings.Contains(volume, c.PodUID) && c.Created.Before(f.at) && c.Created.After(record.Created) {
			record, made = c, f.at.Sub(c.Created) < time.Minute
		}
	}
	why := fmt.Sprintf("failed at %s, the runtime made it at %s; %s", f.at.Format("15:04:05.000000"), record.Created.Format("15:04:05.000000"), last)
	switch {
	case strings.Contains(f.message, "consistent content of /proc/mounts"):
		return byTable, why
	case strings.Contains(f.message, "failed to prepare subPath") && strings.Contains(f.message, "no such file or directory"):
		return byRemoval, why
	case made && strings.Contains(f.message, "no such file or directory") && record.Created.Before(last.replaced):
		return inWindow, why
	}
	return other, why
}

// report returns the figures of all updates.
func (r *recorder) report(b *testing.B) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var windows, ahead []time.Duration
	stale := 0
	for _, at := range r.places {
		for _, u := range at.updates {
			ahead = append(ahead, u.removed.Sub(u.renamed))
			if u.replaced.IsZero() {
				stale++
			} else {
				windows = append(windows, u.window())
			}
		}
	}
	for name, all := range map[string][]time.Duration{"stale": windows, "rename-to-removal": ahead} {
		for unit, p := range map[string]int{"p50": 50, "p90": 90, "p99": 99, "max": 100} {
			b.ReportMetric(milliseconds(percentile(all, p)), "ms-"+name+"-"+unit)
		}
	}
	b.ReportMetric(float64(len(windows)+stale), "updates")
	b.ReportMetric(float64(stale), "never-replaced")
}

// kubeletLog is the file that a kubelet writes its Events to.
type kubeletLog struct{ file string }

// failure is an Event that a container could not be started.
type failure struct {
	at                      time.Time
	pod, container, message string
}

var failedEvent = regexp.MustCompile(`^[IEW](\d{4} \d\d:\d\d:\d\d\.\d+) .*Name:"(soak-\d+)".*FieldPath:"spec\.containers\{(\w+)\}".*reason: 'Failed\w*' (.*)`)

var failedSubPath = regexp.MustCompile(`failed to prepare subPath for volumeMount "\w+" of container "(\w+)": (.*)`)

func (l kubeletLog) length(b *testing.B) int {
	st, err := os.Stat(l.file)
	must(b, err)
	return int(st.Size())
}

// failures lists those that were written from a position on. The Event says that a subPath could not be prepared, and the
// error right before it why.
func (l kubeletLog) failures(b *testing.B, from int) (found []failure) {
	text, err := os.ReadFile(l.file)
	must(b, err)
	why := map[string]string{} // by name of the container
	for line := range strings.Lines(string(text[from:])) {
		if m := failedSubPath.FindStringSubmatch(line); m != nil {
			why[m[1]] = m[2]
		}
		if m := failedEvent.FindStringSubmatch(line); m != nil {
			at, err := time.ParseInLocation("20060102 15:04:05.000000", fmt.Sprint(time.Now().Year())+m[1], time.Local)
			must(b, err)
			found = append(found, failure{at, m[2], m[3], m[4] + ": " + why[m[3]]})
			delete(why, m[3])
		}
	}
	return found
}
