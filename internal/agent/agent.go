// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/guard"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/memlimit"
)

// runAgent runs the agent until ctx is done. The next start resumes the Diagnoses that run then. The process must end
// after it returns: kubeclient.Run names all that may be left behind.
func runAgent(ctx context.Context, config *rest.Config, settings options, registry prometheus.Registerer) (err error) {
	root, err := openDataRoot(ctx, settings.DataRoot, lockTimeout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	mark, killed, markErr := memlimit.SetMark(filepath.Join(settings.DataRoot, markFile))
	freshness := &guard.Freshness{}
	manager, err := newManager(config, settings, freshness, killed)
	if err != nil {
		return errors.Join(err, mark.Remove())
	}
	if markErr != nil { // it works without, until it is killed
		manager.GetLogger().Error(markErr, "Could not note that the agent runs")
	}
	if killed {
		manager.GetLogger().Info("The last agent was probably killed for memory: pods and Diagnoses are listed in pages", "page", carefulPage)
	}
	a := &agent{options: settings, manager: manager, freshness: freshness, registry: registry, pages: killed}
	a.kubelet = &kubelet.Finder{Root: settings.KubeletRoot, PID: settings.KubeletPID, PodUID: string(settings.PodUID)}
	defer func() { err = errors.Join(err, a.close(), mark.Remove()) }()
	if err := a.assemble(ctx); err != nil {
		return err
	}
	err = errors.Join( // it is healthy as long as it answers, and ready once it sees its work and its kubelet
		manager.AddHealthzCheck("ping", healthz.Ping),
		manager.AddReadyzCheck("caches", kubeclient.Synced(manager.GetCache())),
		manager.AddReadyzCheck("kubelet", func(r *http.Request) error {
			_, err := a.kubelet.Node(r.Context())
			return err
		}),
	)
	if err != nil {
		return err
	}
	if err := kubeclient.Run(ctx, manager); err != nil {
		return fmt.Errorf("running agent: %w", err)
	}
	return nil
}

// startWatching makes the cache watch the kinds that are read from it.
func startWatching(ctx context.Context, m manager.Manager) error {
	for _, kind := range []client.Object{&v1.Diagnosis{}, &v1.Operation{}, &v1.OperationSet{}, &corev1.Pod{}} {
		if _, err := m.GetCache().GetInformer(ctx, kind); err != nil {
			return fmt.Errorf("watching %T: %w", kind, err)
		}
	}
	return nil
}
