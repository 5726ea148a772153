// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

// TestMountPoints has the mounts of one container, and other lines of its template. The rule follows from them, and a part of the summary.
func TestMountPoints(t *testing.T) {
	t.Parallel()
	const ab = `{name: a, mountPath: /a, readOnly: true}, {name: b, mountPath: /a/b}`
	for name, c := range map[string]struct {
		volumes, mounts, more string
		rule                  Rule // empty: no risk
		text                  string
	}{
		"below a read-only emptyDir":          {`{name: a, emptyDir: {}}, {name: b, emptyDir: {}}`, ab, "", ReadOnlyMountPoint, `"/a/b" below "/a"`},
		"below one to write":                  {`{name: a, emptyDir: {}}, {name: b, emptyDir: {}}`, `{name: a, mountPath: /a}, {name: b, mountPath: /a/b}`, "", "", ""},
		"below a ConfigMap":                   {`{name: a, configMap: {name: c}}, {name: b, emptyDir: {}}`, ab, "", "", ""},
		"below a claim":                       {`{name: a, persistentVolumeClaim: {claimName: c}}, {name: b, emptyDir: {}}`, ab, "", "", ""},
		"beside it":                           {`{name: a, emptyDir: {}}, {name: b, emptyDir: {}}`, `{name: a, mountPath: /a, readOnly: true}, {name: b, mountPath: /ab}`, "", "", ""},
		"with a writable one in between":      {`{name: a, emptyDir: {}}, {name: b, emptyDir: {}}`, `{name: a, mountPath: /a, readOnly: true}, {name: b, mountPath: /a/b}, {name: b, mountPath: /a/b/c}`, "", ReadOnlyMountPoint, `"/a/b" below "/a"`},
		"another container writes the volume": {`{name: a, emptyDir: {}}, {name: b, emptyDir: {}}`, ab, "initContainers: [{name: init, volumeMounts: [{name: a, mountPath: /a}]}]", "", ""},

		"a file":                         {`{name: a, hostPath: {path: /etc/localtime, type: File}}`, `{name: a, mountPath: /etc/localtime}`, "", SingleFile, `file "/etc/localtime"`},
		"a file that is made":            {`{name: a, hostPath: {path: /run/xtables.lock, type: FileOrCreate}}`, `{name: a, mountPath: /x}`, "", SingleFile, "file"},
		"a socket":                       {`{name: a, hostPath: {path: /run/c/c.sock, type: Socket}}`, `{name: a, mountPath: /x}`, "", SingleFile, `socket "/run/c/c.sock"`},
		"a socket by its name":           {`{name: a, hostPath: {path: /run/c/c.sock}}`, `{name: a, mountPath: /x}`, "", SingleFile, "socket"},
		"a directory":                    {`{name: a, hostPath: {path: /run/c, type: Directory}}`, `{name: a, mountPath: /x}`, "", "", ""},
		"a directory called as a socket": {`{name: a, hostPath: {path: /run/c.sock, type: Directory}}`, `{name: a, mountPath: /x}`, "", "", ""},
		"of no type":                     {`{name: a, hostPath: {path: /srv/a}}`, `{name: a, mountPath: /x}`, "", "", ""},

		"a termination log inside": {`{name: a, emptyDir: {}}`, `{name: a, mountPath: /w, mountPropagation: Bidirectional}`, "terminationMessagePath: /w/log", MountInside, `termination log "/w/log"`},
		"a termination log beside": {`{name: a, emptyDir: {}}`, `{name: a, mountPath: /w, mountPropagation: Bidirectional}`, "terminationMessagePath: /wide/log", "", ""},
		"in a volume at /dev":      {`{name: a, emptyDir: {}}`, `{name: a, mountPath: /dev, mountPropagation: Bidirectional}`, "", MountInside, `termination log "/dev/termination-log"`},
		"a mount inside":           {`{name: a, emptyDir: {}}, {name: b, emptyDir: {}}`, `{name: a, mountPath: /w, mountPropagation: Bidirectional}, {name: b, mountPath: /w/b}`, "", MountInside, `mounts "/w/b" inside`},
		"that does not spread":     {`{name: a, emptyDir: {}}`, `{name: a, mountPath: /w, mountPropagation: HostToContainer}`, "terminationMessagePath: /w/log", "", ""},
		"in a hostPath":            {`{name: a, hostPath: {path: /srv/a}}`, `{name: a, mountPath: /w, mountPropagation: Bidirectional}`, "terminationMessagePath: /w/log", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			more, list := c.more, ""
			if strings.HasPrefix(more, "initContainers") {
				more, list = "", c.more
			}
			text := fmt.Sprintf("volumes: [%s]\n%s\ncontainers:\n- name: app\n  volumeMounts: [%s]\n  %s\n", c.volumes, list, c.mounts, more)
			found := Check("Pod", "shop", "web", pod(t, text), Options{})
			switch {
			case c.rule == "" && len(found) > 0:
				t.Errorf("found %+v, want nothing", found)
			case c.rule != "" && (len(found) != 1 || found[0].Rule != c.rule || !strings.Contains(found[0].Summary, c.text) || found[0].Cure == "" || found[0].Code != becomes[c.rule]):
				t.Errorf("found %+v, want one of rule %s with %q", found, c.rule, c.text)
			}
		})
	}
}

// TestCuresOfMountPoints applies each patch: the risk is gone.
func TestCuresOfMountPoints(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"read-only":       "volumes: [{name: a, emptyDir: {}}, {name: b, emptyDir: {}}]\ncontainers: [{name: app, volumeMounts: [{name: a, mountPath: /a, readOnly: true}, {name: b, mountPath: /a/b}]}]",
		"termination log": "volumes: [{name: a, emptyDir: {}}]\ncontainers: [{name: app, terminationMessagePath: /w/log, volumeMounts: [{name: a, mountPath: /w, mountPropagation: Bidirectional}]}]",
	} {
		found := Check("Pod", "", "p", pod(t, text), Options{})
		if len(found) != 1 {
			t.Fatalf("%s: %+v", name, found)
		}
		object, err := json.Marshal(map[string]any{"spec": pod(t, text)})
		change, errChange := yaml.YAMLToJSON([]byte(found[0].Patch))
		if err == nil && errChange == nil {
			object, err = strategicpatch.StrategicMergePatch(object, change, corev1.Pod{})
		}
		var cured corev1.Pod
		if err := errors.Join(err, errChange, yaml.UnmarshalStrict(object, &cured)); err != nil {
			t.Fatal(err)
		}
		if left := Check("Pod", "", "p", &cured.Spec, Options{}); len(left) != 0 {
			t.Errorf("%s: the patch leaves %+v:\n%s", name, left, found[0].Patch)
		}
	}
}
