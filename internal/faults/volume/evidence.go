// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"

	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/jsonparts"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
)

// Evidence is a volume with the answers of its mounts. The prober alone writes them, and Judge needs nothing else.
type Evidence struct {
	Volume
	// Answer is that of Mount.
	Answer   probe.Answer
	Expected ExpectedAnswers `json:",inline"`
	// Device is what the kernel says of the device that Mount shows. The zero value: nothing speaks against it.
	Device blockdev.Health `json:",omitzero"`
	// Removal is what decides on the removal of a dead mount that no driver makes again. The zero value: it was not asked.
	Removal RemovalFacts
}

// MarshalJSON implements json.Marshaler: the evidence is one flat object.
func (e Evidence) MarshalJSON() ([]byte, error) { return jsonparts.Marshal(e) }

// UnmarshalJSON implements json.Unmarshaler, for a bundle.
func (e *Evidence) UnmarshalJSON(text []byte) error { return jsonparts.Unmarshal(text, e) }

// ExpectedAnswers are those that the answer of the volume's mount is compared with.
type ExpectedAnswers struct {
	// StagingRoot is that of the root of the staged mount.
	StagingRoot probe.Answer `json:"StagingAnswer"`
	// Directory is that of the directory that belongs at the volume's place: one of the staged mount, or the path of a
	// hostPath that lies below a mount. The zero value: it was not asked.
	Directory probe.Answer `json:"ExpectedAnswer"`
	// UnstableInodes is whether the server gives a directory another inode number every time.
	UnstableInodes bool
}

// gatherEvidence asks every volume's mount, then what belongs in its place, and at last again if only an inode number
// differs.
func (p *batchProber) gatherEvidence(ctx context.Context, volumes []*Volume) ([]*Evidence, error) {
	evidence := make([]*Evidence, len(volumes))
	for i, v := range volumes {
		evidence[i] = &Evidence{Volume: *v}
	}
	// The kernel is asked once about each device.
	known := map[device]blockdev.Health{}
	for _, e := range evidence {
		d := deviceOf(e.Mount.Mount)
		if _, ok := known[d]; !ok {
			known[d] = deviceHealth(e.Mount.Mount)
		}
		e.Device = known[d]
	}
	for _, step := range []func(context.Context, []*Evidence) error{p.askMounts, p.askExpected, p.recheckInodes} {
		if err := step(ctx, evidence); err != nil {
			return nil, err
		}
	}
	return evidence, nil
}

func deviceHealth(m mountinfo.Mount) blockdev.Health {
	if m.Major == 0 { // it is on no device that its mounts show
		return blockdev.Health{}
	}
	return blockdev.Sys{}.Health(blockdev.Number{Major: m.Major, Minor: m.Minor})
}

// askMounts asks every volume's own mount, and every staging path once, for its root alone.
func (p *batchProber) askMounts(ctx context.Context, evidence []*Evidence) error {
	var requests []probeRequest
	staged := map[string]*probe.Answer{} // by staging path
	for _, e := range evidence {
		bind := !e.Origin.Inside && (!e.isPath() || e.Point == e.Mount.Point)
		requests = append(requests, probeRequest{probeTarget(e.Pod.UID, e.Mount, "", bind), func(a probe.Answer) { e.Answer = a }})
		if e.Staging != nil && staged[e.Staging.Point] == nil {
			answer := &probe.Answer{}
			staged[e.Staging.Point] = answer
			requests = append(requests, probeRequest{probeTarget(e.Pod.UID, e.Staging.Mount, "", false), func(a probe.Answer) { *answer = a }})
		}
	}
	if err := p.askAll(ctx, requests); err != nil {
		return err
	}
	for _, e := range evidence {
		e.Mount.Unique = e.Answer.ID.UniqueID
		if e.Staging != nil {
			s := *e.Staging
			e.Expected.StagingRoot = *staged[s.Point]
			s.Mount.Unique = e.Expected.StagingRoot.ID.UniqueID
			e.Staging = &s
		}
	}
	return nil
}

// askExpected asks for what belongs at each volume's place, only through mounts that have answered: a lookup through a
// dead one would have the kernel forget it.
func (p *batchProber) askExpected(ctx context.Context, evidence []*Evidence) error {
	var requests []probeRequest
	for _, e := range evidence {
		switch {
		case e.isPath():
			if e.Answer.State == probe.Alive && e.asksPath() {
				requests = append(requests, probeRequest{probeTarget(e.Pod.UID, e.Mount, e.pathBelowMount(), true), e.setExpected})
			}
		case e.Expected.StagingRoot.State == probe.Alive && e.stagedLocation().Known:
			// A trial bind matters only for one that has to be bound.
			bind := e.Answer.State != probe.Alive || e.Answer.Bindable == probe.No
			if bind || e.stagedLocation().Below != "" {
				requests = append(requests, e.requestExpected(bind))
			} else {
				e.Expected.Directory = e.Expected.StagingRoot
			}
		}
	}
	return p.askAll(ctx, requests)
}

// requestExpected asks for the directory of the staged mount that belongs at the volume's place.
func (e *Evidence) requestExpected(bind bool) probeRequest {
	return probeRequest{probeTarget(e.Pod.UID, e.Staging.Mount, e.stagedLocation().Below, bind), e.setExpected}
}

func (e *Evidence) setExpected(a probe.Answer) { e.Expected.Directory = a }

// tryBinds has a trial bind made of the directories that turned out to be needed.
func (p *batchProber) tryBinds(ctx context.Context, volumes []*Health) error {
	var requests []probeRequest
	for _, v := range volumes {
		if now := v.Evidence.Expected.Directory; v.Verdict.Code != "" && v.Evidence.Staging != nil && now.State == probe.Alive && now.Bindable == probe.Unknown {
			requests = append(requests, v.Evidence.requestExpected(true))
		}
	}
	return p.askAll(ctx, requests)
}

// recheckInodes asks again about volumes that differ from what belongs there by their inode number alone. Some servers
// make the numbers up, and give another one every time: they prove nothing, and to replace such mounts would have no
// end.
func (p *batchProber) recheckInodes(ctx context.Context, evidence []*Evidence) error {
	var requests []probeRequest
	for _, e := range evidence {
		if e.stagedLocation().Known && e.isStagedDevice() && e.directoryReplaced() {
			requests = append(requests, e.recheckRequest(e.Pod.UID, e.Mount, "", e.Answer),
				e.recheckRequest(e.Pod.UID, e.Staging.Mount, e.stagedLocation().Below, e.Expected.Directory))
		}
	}
	return p.askAll(ctx, requests)
}

// recheckRequest asks a mount of the volume again, which has given an answer before.
func (e *Evidence) recheckRequest(owner string, m mountns.Mount, below string, before probe.Answer) probeRequest {
	return probeRequest{probeTarget(owner, m, below, false), func(now probe.Answer) {
		// Only the file system itself can have given the number again.
		e.Expected.UnstableInodes = e.Expected.UnstableInodes || now.State != probe.Alive || !now.Stat.Fresh || now.Stat.Inode != before.Stat.Inode
	}}
}

// directoryReplaced reports whether the directory's name means another directory of the same file system by now.
func (e *Evidence) directoryReplaced() bool {
	now, own := e.Expected.Directory, e.Answer
	return !e.Expected.UnstableInodes && now.State == probe.Alive && own.State == probe.Alive && now.Stat.Fresh && own.Stat.Fresh &&
		now.Stat.Major == own.Stat.Major && now.Stat.Minor == own.Stat.Minor && now.Stat.Inode != own.Stat.Inode
}

// countsLinks reports whether a link count of 0 means something. Some FUSE servers never fill it in; one that counts
// says so at the root of what is staged. The root of a file system cannot be deleted.
func (e *Evidence) countsLinks() bool {
	staged, at := e.Expected.StagingRoot, e.stagedLocation()
	return staged.State == probe.Alive && staged.Stat.Fresh && staged.Stat.Nlink > 0 &&
		(at.OnNodeDisk || at.Below != "" && e.isStagedDevice())
}

// probeRequest is a target to ask, and the function that takes the answer.
type probeRequest struct {
	target  probe.Target
	receive func(probe.Answer)
}

// probeTarget is the target for a mount, or for a path below its root. The owner is accountable if there is no answer.
func probeTarget(owner string, m mountns.Mount, below string, bind bool) probe.Target {
	return probe.Target{Owner: owner, Namespace: m.Namespace, Point: m.Point, ID: mount.IDOf(m), Below: below, Bind: bind}
}

// batchProber asks many targets at once, and counts them.
type batchProber struct {
	faults.Prober
	seen   *mountstate.Survey
	silent bool // a file system was, see Survey
}

// askAll asks all of it.
func (p *batchProber) askAll(ctx context.Context, requests []probeRequest) error {
	questions := make([]faults.Question, len(requests))
	for i, r := range requests {
		questions[i] = faults.Question{Target: r.target, Receive: func(a probe.Answer) {
			r.receive(a)
			p.silent = p.silent || a.State == probe.Silent
			if a.State != probe.NotProbed {
				p.seen.Coverage.Asked++
			}
		}}
	}
	return faults.AskAll(ctx, p.Prober, questions, func(err error) {
		p.seen.Unknown.AddGap("mounts of volumes that could not be asked", err.Error())
	})
}
