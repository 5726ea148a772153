// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/faults/volume"
)

// TestSubPathsThatAreWorkedOut has the pod's spec name the directory "sub" of the volume in another way than by its
// path. why: the bind and the container's copy of it are left alone, and why.
func TestSubPathsThatAreWorkedOut(t *testing.T) {
	env := func(expr string, vars ...corev1.EnvVar) func(*corev1.Container) {
		return func(c *corev1.Container) {
			c.Env, c.VolumeMounts[1].SubPath, c.VolumeMounts[1].SubPathExpr = vars, "", expr
		}
	}
	named := func(subPath string) func(*corev1.Container) {
		return func(c *corev1.Container) { c.VolumeMounts[1].SubPath = subPath }
	}
	value := func(text string) corev1.EnvVar { return corev1.EnvVar{Name: "A", Value: text} }
	podName := corev1.EnvVar{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"},
	}}
	const astray, untold = "which does not lead there", "the pod alone does not show"
	for name, c := range map[string]struct {
		spec func(*corev1.Container)
		link []string // what else there is in the volume, and where it leads; with dots for slashes
		why  string
	}{
		"an expression":                      {spec: env("$(POD_NAME)", podName)},
		"an expression of something else":    {spec: env("$(A)", value("other")), why: `asks for subPath "other"`},
		"an expression that is not known":    {spec: env("$(KUBERNETES_SERVICE_HOST)"), why: untold},
		"an expression that climbs":          {spec: env("$(A)", value("../sub")), why: untold},
		"a link":                             {spec: named("alias"), link: []string{"csi.vol1.alias", "sub"}},
		"an expression and a link":           {spec: env("al$(A)s", value("ia")), link: []string{"csi.vol1.alias", "sub"}},
		"a link that is gone":                {spec: named("alias"), why: astray},
		"a link to another directory":        {spec: named("alias"), link: []string{"csi.vol1.alias", "more"}, why: astray},
		"a link to another volume's":         {spec: named("alias"), link: []string{"csi.vol1.alias"}, why: astray},
		"a link in another volume's":         {spec: named("alias/vol1"), link: []string{"csi.vol1.alias"}, why: astray},
		"a link from the root of the volume": {spec: named("alias"), link: []string{"csi.vol1.alias", ".csi.vol1.sub"}, why: astray},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, deepDir)
			s.Pod.Name = "sub" // so that it is the name of the directory
			c.spec(&s.Pod.Spec.Containers[0])
			container := s.startContainer()
			s.Kill()
			s.Remount("new")
			s.Elsewhere("make", "csi.vol1.more", "more")
			if c.link != nil {
				s.Elsewhere(append([]string{"link"}, c.link...)...)
			}
			if c.why != "" {
				s.expectRefused(container, c.why, 2)
				return
			}
			actions, refusals := s.planOf(s.inspectVolume(), volume.PlanOptions{})
			if len(actions) != 4 || len(refusals) > 0 {
				t.Fatalf("actions %+v, refusals %q, want four steps", actions, refusals)
			}
			s.repairVolume()
			if got := readInContainer(container.PID, "sub/data"); got != "new" {
				t.Errorf("the container reads %q", got)
			}
		})
	}
}
