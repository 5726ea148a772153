// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

// batch is how many objects one transaction of etcd writes; it allows 128.
const batch = 100

// fill makes the nodes and Diagnoses that have ended, if they are not there yet. The API server writes the first Diagnosis; the others
// are copies of it in etcd, as after the restore of a backup, since the API server takes minutes to write 100,000.
func (l *large) fill(b *testing.B) {
	b.Helper()
	began := time.Now()
	l.addNodes(b)
	must(b, client.IgnoreAlreadyExists(l.client.Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: past}})))
	stored := l.stored(b, l.firstEnded(b))
	each(b, (*ended+batch-1)/batch, func(ctx context.Context, i int) error {
		var copies []apitest.Stored
		for n := i * batch; n < min(*ended, (i+1)*batch); n++ {
			d := stored.DeepCopy()
			d.Name, d.Spec.NodeName, d.UID = endedName(n), nodeName(n%*nodes), uuid.NewUUID()
			d.Labels = map[string]string{v1.LabelNode: v1.NodeLabelValue(d.Spec.NodeName)}
			value, err := json.Marshal(d)
			if err != nil {
				return err
			}
			copies = append(copies, apitest.Stored{Key: []byte(endedKey(n)), Value: value})
		}
		return l.env.WriteEtcd(ctx, copies...)
	})
	b.Logf("filled with %d nodes and %d ended Diagnoses in %s", *nodes, *ended, time.Since(began).Round(time.Second))
}

func endedName(n int) string { return fmt.Sprintf("ended-%06d", n) }

func endedKey(n int) string {
	return "/registry/" + v1.Group + "/diagnoses/" + past + "/" + endedName(n)
}

// firstEnded makes the first Diagnosis, with its results, and returns its UID.
func (l *large) firstEnded(b *testing.B) types.UID {
	b.Helper()
	d := newDiagnosis(endedName(0), nodeName(0))
	d.Namespace, d.Labels = past, map[string]string{v1.LabelNode: v1.NodeLabelValue(d.Spec.NodeName)}
	must(b, client.IgnoreAlreadyExists(l.client.Create(b.Context(), d)))
	must(b, l.client.Get(b.Context(), client.ObjectKeyFromObject(d), d))
	now := metav1.Now()
	d.Status = v1.DiagnosisStatus{
		Phase: v1.DiagnosisSucceeded, Outcome: v1.OutcomeHealed, StartTime: &now, CompletionTime: &now,
		OperationResults: map[string]string{"collector.system.mountinfo": strings.Repeat("x", 2048)},
	}
	must(b, l.client.Status().Update(b.Context(), d))
	return d.UID
}

// stored is the first Diagnosis as etcd has it.
func (l *large) stored(b *testing.B, uid types.UID) *v1.Diagnosis {
	b.Helper()
	found, err := l.env.ReadEtcd(b.Context(), endedKey(0))
	must(b, err)
	d := &v1.Diagnosis{}
	must(b, json.Unmarshal(found.Value, d))
	if d.UID != uid {
		b.Fatalf("UID %q at %q, want %q", d.UID, endedKey(0), uid)
	}
	return d
}
