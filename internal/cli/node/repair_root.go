// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/filelock"
	"kubediag.org/kubediag/internal/pipeline"
)

// defaultDataRoot is that of the agent.
const defaultDataRoot = "/var/lib/kubediag"

// ownDirName is the directory of this command below the data root: the agent removes journals that are none of its own.
const ownDirName = "by-hand"

const (
	// lockPatience bounds the wait for another program that repairs.
	lockPatience = 30 * time.Second
	// journalAge is for how long the journals of repairs are kept.
	journalAge = 30 * 24 * time.Hour
)

// repairRoot is the data root of the agent, as far as it concerns other programs that repair.
type repairRoot struct {
	dir  string
	lock *filelock.Lock
}

// openRepairRoot makes the directories for journals if they are not there. Others must not be able to write to them.
func openRepairRoot(dir string) (*repairRoot, error) {
	for _, d := range []string{dir, filepath.Join(dir, ownDirName)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("make directory for journals (--data-root): %w", err)
		}
		if err := checkOwner(d); err != nil {
			return nil, fmt.Errorf("directory for journals (--data-root): %w", err)
		}
	}
	r := &repairRoot{dir: dir, lock: &filelock.Lock{Path: filepath.Join(dir, filelock.Repairs)}}
	var errs []error
	for _, pattern := range []string{"journal/*", "artifacts/*"} {
		files, err := filepath.Glob(filepath.Join(r.dir, ownDirName, pattern))
		errs = append(errs, err)
		for _, name := range files {
			if st, err := os.Lstat(name); err == nil && time.Since(st.ModTime()) > journalAge {
				errs = append(errs, os.RemoveAll(name))
			}
		}
	}
	return r, errors.Join(errs...)
}

// holdLock keeps other programs of the node from repairs.
func (r *repairRoot) holdLock(ctx context.Context) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	return r.lock.Hold(ctx)
}

// agentRepairs are the repairs that an agent of this node has begun, and its process. Without a running agent there are
// none: the next agent takes up the repairs of an earlier one.
func agentRepairs(dataRoot string) ([]pipeline.Repair, error) {
	lock := filepath.Join(dataRoot, filelock.Agent)
	if _, err := os.Stat(lock); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	release, err := (&filelock.Lock{Path: lock}).Try()
	if err == nil {
		release()
		return nil, nil
	}
	if !errors.Is(err, filelock.ErrBusy) {
		return nil, fmt.Errorf("see whether an agent runs: %w", err)
	}
	return pipeline.Underway(dataRoot)
}

// overlapsPlan reports whether an action of an agent overlaps with an action of a plan, or may do so.
func overlapsPlan(actions, planned []fault.Action) bool {
	return slices.ContainsFunc(planned, func(own fault.Action) bool {
		return slices.ContainsFunc(actions, func(a fault.Action) bool {
			same, known := a.Overlaps(own)
			return same || !known
		})
	})
}

// agentRefusal says why a plan is not carried out beside the repairs of an agent; empty: it may be. overlaps reports
// whether a repair and the plan change the same mounts or containers.
func agentRefusal(underway []pipeline.Repair, overlaps func(pipeline.Repair) bool) string {
	for _, r := range underway {
		switch {
		case r.Unknown:
			return fmt.Sprintf("an agent of this node may work on it: the journal of the Diagnosis with UID %s is not one that this release "+
				"can read. Wait until that Diagnosis has ended, or delete it, and try again", r.UID)
		case overlaps(r):
			return "an agent of this node works on it: the Diagnosis with UID " + r.UID
		}
	}
	return ""
}
