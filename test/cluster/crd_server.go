// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"

	"kubediag.org/kubediag/test/freeport"
)

// StartCRDServer118 starts the server of custom resources of Kubernetes 1.18, which is as much of an API server of that age
// as still builds. It keeps its objects in the cluster's etcd, apart from the cluster's own, and asks the cluster's API
// server to authenticate and authorise users. It has no list of all groups at /apis, so a client must know the names of the
// groups that it wants; /apis/<group>/<version> answers. The configuration is for the cluster's administrator. stop ends
// the server and keeps its objects; it ends with the cluster in any case.
func StartCRDServer118(ctx context.Context, c *Cluster) (config *rest.Config, stop func(), err error) {
	path, err := binary(ctx, "apiextensions-apiserver", Kubernetes118)
	if err != nil {
		return nil, nil, err
	}
	free, err := freeport.Find(c.local, 1)
	if err != nil {
		return nil, nil, err
	}
	if err := c.ca.serving("crdserver", c.local); err != nil {
		return nil, nil, err
	}
	p, err := c.spawn("apiextensions-apiserver", path, c.crdServerArgs(free[0].Port)...)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	config = c.clientConfig(*free[0])
	if err := c.waitReady(ctx, config); err != nil {
		c.end(p)
		return nil, nil, fmt.Errorf("%w\n%s", err, c.Logs(p.name))
	}
	return config, func() { c.end(p) }, nil
}

func (c *Cluster) crdServerArgs(port int) []string {
	conf := "=" + c.Kubeconfig()
	return []string{
		"--etcd-servers=" + c.etcd, "--etcd-prefix=/crdserver",
		"--bind-address=" + c.local.String(), fmt.Sprintf("--secure-port=%d", port),
		"--tls-cert-file=" + c.path("pki", "crdserver.crt"), "--tls-private-key-file=" + c.path("pki", "crdserver.key"),
		"--kubeconfig" + conf, "--authentication-kubeconfig" + conf, "--authorization-kubeconfig" + conf,
		"--authentication-tolerate-lookup-failure",
	}
}
