// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/bundle"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/version"
)

// agentContainer is the container of an agent's pod that has the program.
const agentContainer = "agent"

func newBundleCommand(conn *connection) *cobra.Command {
	o := &bundleOptions{}
	cmd := &cobra.Command{
		Use:   "bundle --node NODE",
		Short: "Write one file for a ticket: what the agent's pod of a node sees there",
		Long: "bundle runs kubediag bundle in the agent's pod of a node, with the pods of that node, and writes the file here. The file\n" +
			"has no credentials; read it with kubediag scan --from. It takes the right to create pods/exec in kubediag's namespace,\n" +
			"which is the right to do anything on the node.\n\n" +
			"Exit status: 0 written, 2 it could not look, 3 refused: a right is missing, or the file is there already.",
		Example: "  kubectl kubediag bundle --node worker-3\n  kubediag scan --from kubediag-worker-3-20261123T120000Z.tar.gz",
		Args:    verb.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.node == "" {
				return errors.New("--node is missing: name the node")
			}
			client, err := conn.newClient()
			if err != nil {
				return err
			}
			return o.runBundle(cmd, client)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.node, "node", "", "the node")
	f.StringVarP(&o.file, "output", "o", "", "file to write, \"-\": standard output (default kubediag-NODE-TIME.tar.gz in this directory)")
	f.BoolVar(&o.force, "force", false, "replace a file that is there")
	f.StringVar(&o.home, "kubediag-namespace", defaultHome, "the namespace that kubediag is installed in")
	verb.CompleteFlag(cmd, "node", conn.resourceNames(nodeKind))
	return cmd
}

// bundleOptions are the flags of bundle.
type bundleOptions struct {
	node, file, home string
	force            bool
}

func (o *bundleOptions) runBundle(cmd *cobra.Command, apiClient *client) error {
	ctx := cmd.Context()
	name := o.file
	if name == "" {
		name = bundle.FileName(o.node, time.Now())
	}
	if name != "-" { // before the work, and again when it is written
		if err := bundle.Check(name, o.force); err != nil {
			return err
		}
	}
	agent, err := apiClient.agentPodOf(ctx, o.node, o.home)
	if err != nil {
		return err
	}
	args := []string{"/kubediag", "bundle", "-o", "-"}
	var pods corev1.PodList
	var specs []byte
	switch err := apiClient.server.List(ctx, &pods, ctrlclient.MatchingFields{"spec.nodeName": o.node}); {
	case errors.Is(err, verb.ErrRefused):
		fmt.Fprintln(cmd.ErrOrStderr(), printable.Line("without the pods' specs: "+err.Error()))
	case err != nil:
		return err
	default:
		args = append(args, "--pods", "-")
		pods.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}
		if specs, err = json.Marshal(&pods); err != nil {
			return fmt.Errorf("write down the pods of node %q: %w", o.node, err)
		}
	}
	b, err := agent.makeBundle(ctx, args, specs)
	if err != nil {
		return err
	}
	if name == "-" {
		return b.Write(cmd.OutOrStdout())
	}
	size, err := b.Create(name, o.force)
	if err != nil {
		return err
	}
	return verb.Write(cmd.OutOrStdout(), writtenText(name, size))
}

// writtenText says where the bundle is, and how to read it.
func writtenText(name string, size int64) string {
	return fmt.Sprintf("Wrote %s: %d KiB.\nRead it with: kubediag scan --from %s\n", printable.Quoted(name), (size+1023)>>10, fault.Quote(name))
}

// agentPod is the pod of an agent that runs.
type agentPod struct {
	api *client
	pod *corev1.Pod
}

// agentPodOf finds the pod of the agent that runs on a node.
func (c *client) agentPodOf(ctx context.Context, node, home string) (*agentPod, error) {
	var list corev1.PodList
	err := c.server.List(ctx, &list, ctrlclient.InNamespace(home), ctrlclient.MatchingLabels{componentLabel: "agent"}, ctrlclient.MatchingFields{"spec.nodeName": node})
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list.Items, func(p corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == agentContainer && s.State.Running != nil })
	})
	if i < 0 {
		if err := c.server.Get(ctx, ctrlclient.ObjectKey{Name: node}, &corev1.Node{}); errors.Is(err, errMissing) {
			return nil, err
		}
		return nil, fmt.Errorf("no agent runs on node %q: use kubectl debug node/%s --image=%s --profile=sysadmin -it -- /kubediag scan, see docs/kubectl.md",
			node, node, version.CLIImage())
	}
	return &agentPod{c, &list.Items[i]}, nil
}

// makeBundle runs a command in the agent's container, and reads the bundle that it writes to its standard output.
func (a *agentPod) makeBundle(ctx context.Context, args []string, stdin []byte) (*bundle.Bundle, error) {
	run, err := a.newExecutor(args)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	defer func() { _ = r.Close() }() // the writer sees it
	var said bytes.Buffer            // its size is bounded below
	ended := make(chan error, 1)
	go func() {
		err := run.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: bytes.NewReader(stdin), Stdout: w,
			Stderr: &clippedBuffer{&said, 16 << 10}})
		ended <- errors.Join(err, w.Close())
	}()
	content, bad := bundle.Read(r)
	if bad != nil {
		cancel() // what comes is not wanted
	}
	_ = r.Close()
	err = <-ended
	if text := strings.TrimSpace(said.String()); bad != nil && text != "" {
		return nil, fmt.Errorf("kubediag in pod %s/%s: %s", a.pod.Namespace, a.pod.Name, printable.Line(text))
	}
	if bad != nil && err != nil && !errors.Is(err, context.Canceled) {
		return nil, a.api.requestError(requestAction{"create", corev1.Resource("pods/exec"), ctrlclient.ObjectKeyFromObject(a.pod)}, err)
	}
	return content, bad
}

// newExecutor prepares a command in the agent's container: by WebSocket, or by SPDY if the API server is older.
func (a *agentPod) newExecutor(args []string) (remotecommand.Executor, error) {
	core, err := a.api.restClient(corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	request := core.Post().Resource("pods").Namespace(a.pod.Namespace).Name(a.pod.Name).SubResource("exec").
		Param("container", agentContainer).Param("stdin", "true").Param("stdout", "true").Param("stderr", "true")
	for _, arg := range args {
		request = request.Param("command", arg)
	}
	spdy, err := remotecommand.NewSPDYExecutor(a.api.config, "POST", request.URL())
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	socket, err := remotecommand.NewWebSocketExecutor(a.api.config, "GET", request.URL().String())
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// clippedBuffer keeps the beginning of the bytes that are written to it.
type clippedBuffer struct {
	to   *bytes.Buffer
	room int
}

func (c *clippedBuffer) Write(p []byte) (int, error) {
	c.to.Write(p[:min(len(p), c.room-min(c.room, c.to.Len()))])
	return len(p), nil
}
