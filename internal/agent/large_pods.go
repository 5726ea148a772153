// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"kubediag.org/kubediag/internal/extract"
	"kubediag.org/kubediag/internal/share"
)

// The memory for pods that are larger than the bound of the cache: 8 MiB in blocks, which namespaces and pods share.
const (
	largeBlock      = 64 << 10
	maxLargeBlocks  = 128
	largeReadWithin = 10 * time.Second
)

// largePods keeps of a few pods the volumes and mounts that the cache drops, because they are too large for each pod. It reads such a
// pod from the API server once for each version of it.
type largePods struct {
	queue workqueue.TypedInterface[largePod]
	room  share.Room
	// blocks are those that a pod has.
	blocks map[types.UID]largeBlocks
}

// largePod names a pod, and on whose account it is read.
type largePod struct {
	types.NamespacedName
	uid types.UID
}

// largeBlocks counts the blocks of a pod.
type largeBlocks struct {
	owner share.Owner
	count int
}

func newLargePods() *largePods {
	return &largePods{
		queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[largePod]{
			Queue: share.NewStore(func(p largePod) share.Owner { return share.Owner{Namespace: p.Namespace, Pod: p.Name} }),
		}),
		room: share.Room{Places: maxLargeBlocks}, blocks: map[types.UID]largeBlocks{},
	}
}

// take reports whether a pod of this weight has room. If it has not, it takes none.
func (l *largePods) take(pod *corev1.Pod, bytes int) bool {
	l.free(pod.UID)
	of := largeBlocks{owner: share.Owner{Namespace: pod.Namespace, Pod: pod.Name}}
	for ; of.count*largeBlock < bytes; of.count++ {
		if !l.room.Take(of.owner) {
			l.blocks[pod.UID] = of
			l.free(pod.UID)
			return false
		}
	}
	l.blocks[pod.UID] = of
	return true
}

func (l *largePods) free(uid types.UID) {
	for range l.blocks[uid].count {
		l.room.Free(l.blocks[uid].owner)
	}
	delete(l.blocks, uid)
}

// readLarge reads the pods that were too large for the cache until ctx is done.
func (p *nodePods) readLarge(ctx context.Context) error {
	defer context.AfterFunc(ctx, p.large.queue.ShutDown)()
	for pace := rate.NewLimiter(2, 10); pace.Wait(ctx) == nil; {
		of, ended := p.large.queue.Get()
		if ended {
			break
		}
		p.readLargePod(ctx, of)
		p.large.queue.Done(of)
	}
	return nil
}

// readLargePod puts a pod into the index in the place of its name, if there is room. A pod that has changed meanwhile stays a name until the
// cache has its next version.
func (p *nodePods) readLargePod(ctx context.Context, of largePod) {
	ctx, cancel := context.WithTimeout(ctx, largeReadWithin)
	defer cancel()
	pod := &corev1.Pod{}
	if err := p.live.Get(ctx, of.NamespacedName, pod); err != nil && !apierrors.IsNotFound(err) {
		p.large.queue.Add(of) // it waits for its turn again
		return
	}
	part, bytes := extract.Whole(pod)
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.byUID[of.uid]; pod.UID == of.uid && now != nil && now.ResourceVersion == pod.ResourceVersion && p.large.take(pod, bytes) {
		p.byUID[of.uid] = part
	}
}
