// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// Dump writes the facts that explain a failed test: the pods and events of all namespaces, the mounts under the kubelet's
// root, and the end of every log. If a part cannot be read, its error is written instead.
func (c *Cluster) Dump(ctx context.Context, w io.Writer) {
	fmt.Fprintf(w, "== pods\n%s\n", asText(c.pods(ctx)))
	fmt.Fprintf(w, "== events\n%s\n", asText(c.events(ctx)))
	fmt.Fprintf(w, "== mounts\n%s\n", asText(c.mounts()))
	fmt.Fprint(w, c.allLogs())
}

func (c *Cluster) pods(ctx context.Context) (string, error) {
	client, err := kubernetes.NewForConfig(c.rest)
	if err != nil {
		return "", err
	}
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for i := range pods.Items {
		pods.Items[i].ManagedFields = nil
	}
	b, err := yaml.Marshal(pods.Items)
	return string(b), err
}

func (c *Cluster) events(ctx context.Context) (string, error) {
	client, err := kubernetes.NewForConfig(c.rest)
	if err != nil {
		return "", err
	}
	events, err := client.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, e := range events.Items {
		o := e.InvolvedObject
		fmt.Fprintf(&b, "%s %dx %s %s/%s %s: %s\n", e.LastTimestamp.UTC().Format("15:04:05"), e.Count, o.Kind, o.Namespace,
			o.Name, e.Reason, e.Message)
	}
	return b.String(), nil
}

func (c *Cluster) mounts() (string, error) {
	root, err := filepath.EvalSymlinks(c.KubeletRoot())
	if err != nil {
		return "", err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
	var b strings.Builder
	for _, m := range mounts {
		fmt.Fprintf(&b, "%d %s on %s type %s (%s %s)\n", m.ID, m.Root, m.Mountpoint, m.FSType, m.Options, m.Optional)
	}
	return b.String(), err
}

// allLogs returns the end of every log.
func (c *Cluster) allLogs() string {
	entries, _ := os.ReadDir(c.path("log")) // a cluster that is stopped has no logs
	var b strings.Builder
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".log")
		fmt.Fprintf(&b, "== %s\n%s\n", name, c.Logs(name))
	}
	return b.String()
}

func asText(s string, err error) string {
	if err != nil {
		return s + err.Error()
	}
	return s
}
