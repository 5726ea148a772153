// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
)

// answering is how often the manager's answer is looked for: twelve times in 3.4 s.
var answering = wait.Backoff{Steps: 12, Duration: 20 * time.Millisecond, Factor: 1.5}

// wakeTimeout bounds all of it, where the API server hangs.
const wakeTimeout = 5 * time.Second

// waker has the manager wake the kubelet, for the agent may not change a pod: it asks by a condition of the Diagnosis that is
// run, and the manager answers in that. The next status that the agent stores is without it.
type waker struct {
	client  client.Client
	live    client.Reader
	backoff wait.Backoff // of the looks for an answer
}

// runningKey is the key of the Diagnosis that is run, in the context of its run.
type runningKey struct{}

// running is a context of the run of d, by which a waker knows whose pod it may ask for.
func running(ctx context.Context, d *v1.Diagnosis) context.Context {
	return context.WithValue(ctx, runningKey{}, d)
}

// runningIn is the Diagnosis that is run; nil where a processor is called from outside.
func runningIn(ctx context.Context) *v1.Diagnosis {
	d, _ := ctx.Value(runningKey{}).(*v1.Diagnosis)
	return d
}

// Wakes tells whether there is a Diagnosis that can ask.
func (w *waker) Wakes(ctx context.Context) bool { return runningIn(ctx) != nil }

// Wake asks for the pod of the Diagnosis that is run, and for no other.
func (w *waker) Wake(ctx context.Context, namespace, name string) error {
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	d := runningIn(ctx)
	if d == nil {
		return errors.New("no Diagnosis asks for it")
	}
	if ref := d.Spec.PodReference; ref == nil || ref.Namespace != namespace || ref.Name != name {
		return fmt.Errorf("the Diagnosis %s/%s is not about pod %s/%s", d.Namespace, d.Name, namespace, name)
	}
	if err := w.ask(ctx, d); err != nil {
		return fmt.Errorf("asking the manager: %w", err)
	}
	return w.answer(ctx, d)
}

// ask sets the condition, and nothing else of the status as it is stored. No two requests have the same text.
func (w *waker) ask(ctx context.Context, d *v1.Diagnosis) error {
	request := metav1.Condition{
		Type: v1.ConditionKubeletWoken, Status: metav1.ConditionUnknown, Reason: v1.ReasonWakeRequested, ObservedGeneration: d.Generation,
		Message: "Since " + time.Now().UTC().Format(time.RFC3339Nano) + " the kubelet is to look at the Pod at once",
	}
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := w.get(ctx, d)
		if err != nil {
			return err
		}
		from := client.MergeFromWithOptions(now.DeepCopy(), client.MergeFromWithOptimisticLock{})
		meta.SetStatusCondition(&now.Status.Conditions, request)
		return w.client.Status().Patch(ctx, now, from, fieldOwner)
	})
}

// answer waits for what the manager says. A look that fails is one without an answer.
func (w *waker) answer(ctx context.Context, d *v1.Diagnosis) error {
	var answer *metav1.Condition
	silent := errors.New("the manager does not answer")
	last := silent
	err := wait.ExponentialBackoffWithContext(ctx, w.backoff, func(ctx context.Context) (bool, error) {
		now, err := w.get(ctx, d)
		if err != nil {
			last = fmt.Errorf("looking for the manager's answer: %w", err)
			return false, nil
		}
		last = silent
		answer = meta.FindStatusCondition(now.Status.Conditions, v1.ConditionKubeletWoken)
		return answer == nil || answer.Status != metav1.ConditionUnknown, nil
	})
	switch {
	case err != nil:
		return last
	case answer == nil:
		return errors.New("the manager was not heard: somebody has removed what it was asked by")
	case answer.Status == metav1.ConditionFalse:
		return errors.New(answer.Message)
	}
	return nil
}

// get reads the Diagnosis as it is stored, if it is this one.
func (w *waker) get(ctx context.Context, d *v1.Diagnosis) (*v1.Diagnosis, error) {
	now := &v1.Diagnosis{}
	if err := w.live.Get(ctx, client.ObjectKeyFromObject(d), now); err != nil {
		return nil, err
	}
	if now.UID != d.UID {
		return nil, fmt.Errorf("the Diagnosis %s/%s is another by now", d.Namespace, d.Name)
	}
	return now, nil
}
