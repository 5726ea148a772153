// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/cri"
)

// listedContainers is a runtime that lists these containers for every pod.
type listedContainers struct {
	podRuntime
	containers []cri.PodContainer
}

func (l *listedContainers) PodContainers(context.Context, string) ([]cri.PodContainer, error) {
	return l.containers, nil
}

// TestContainerWithoutRecord removes the record of a container, as a repair does. The pod still has the container, because the
// kubelet starts it again.
func TestContainerWithoutRecord(t *testing.T) {
	failed := cri.PodContainer{Container: cri.Container{Name: "app", ID: "1", Exited: true, ExitCode: 128}}
	beside := cri.PodContainer{Container: cri.Container{Name: "beside", ID: "2"}}
	again := cri.PodContainer{Container: cri.Container{Name: "app", ID: "3"}}
	runtime := &listedContainers{}
	pods := &nodePods{runtime: runtime}
	for _, step := range []struct {
		what         string
		listed, want []cri.PodContainer
	}{
		{"all are there", []cri.PodContainer{failed, beside}, []cri.PodContainer{failed, beside}},
		{"a record was removed", []cri.PodContainer{beside}, []cri.PodContainer{beside, failed}},
		{"it is started again", []cri.PodContainer{again, beside}, []cri.PodContainer{again, beside}},
	} {
		runtime.containers = step.listed
		got, err := pods.containers(t.Context(), "uid")
		must(t, err)
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
	}
}
