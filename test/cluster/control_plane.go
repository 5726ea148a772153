// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"kubediag.org/kubediag/test/freeport"
)

// startControlPlane starts etcd and the API server, and returns when the API server is ready.
func (c *Cluster) startControlPlane(ctx context.Context, bin map[string]string) error {
	if err := c.chooseAddresses(); err != nil {
		return err
	}
	if err := c.writeIdentities(); err != nil {
		return err
	}
	if err := c.startEtcd(bin["etcd"]); err != nil {
		return err
	}
	return c.startAPIServer(ctx, bin["kube-apiserver"])
}

func (c *Cluster) startAPIServer(ctx context.Context, path string) (err error) {
	if c.apiServer, err = c.spawn("kube-apiserver", path, c.apiServerArgs()...); err != nil {
		return err
	}
	return c.waitReady(ctx, c.rest)
}

// StopAPIServer kills the API server. The node goes on by itself until StartAPIServer.
func (c *Cluster) StopAPIServer() { c.end(c.apiServer) }

// StartAPIServer starts the API server that was stopped, and returns when it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	return c.startAPIServer(ctx, c.apiServer.cmd.Path)
}

// chooseAddresses decides where the control plane listens: the API server at the Service's own address where there is a
// node, everything else at the cluster's loopback address.
func (c *Cluster) chooseAddresses() error {
	free, err := freeport.Find(c.local, 5)
	if err != nil {
		return err
	}
	c.api, c.etcd, c.peer = *free[0], "http://"+free[1].String(), "http://"+free[2].String()
	c.ports.manager, c.ports.scheduler = free[3].Port, free[4].Port
	if c.o.Kubelet != "" {
		c.api = net.TCPAddr{IP: c.net.service(), Port: 443}
	}
	return nil
}

// writeIdentities writes certificates, tokens, and a kubeconfig for each user.
func (c *Cluster) writeIdentities() error {
	var err error
	if c.ca, err = newAuthority(c.path("pki")); err != nil {
		return err
	}
	if err := c.ca.serving("apiserver", c.api.IP); err != nil {
		return err
	}
	if err := c.ca.client("kubelet-client", "system:masters"); err != nil {
		return err
	}
	if err := writeKeyPair(c.path("pki"), "serviceaccount"); err != nil {
		return err
	}
	c.admin = newUser("admin", "system:masters")
	users := map[string]user{
		"kubeconfig":             c.admin,
		"controllers.kubeconfig": newUser("system:kube-controller-manager", ""),
		"scheduler.kubeconfig":   newUser("system:kube-scheduler", ""),
		"kubelet.kubeconfig":     newUser("system:node:"+c.o.NodeName, "system:nodes"),
	}
	var all []user
	for file, u := range users {
		all = append(all, u)
		if err := c.writeKubeconfig(c.path(file), u); err != nil {
			return err
		}
	}
	if err := writeTokens(c.path("pki", "tokens.csv"), all...); err != nil {
		return err
	}
	c.rest = c.clientConfig(c.api)
	return nil
}

// clientConfig is the administrator's way to a server of this cluster.
func (c *Cluster) clientConfig(server net.TCPAddr) *rest.Config {
	return &rest.Config{
		Host:            "https://" + server.String(),
		BearerToken:     c.admin.token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: c.path("pki", "ca.crt")},
		Proxy:           func(*http.Request) (*url.URL, error) { return nil, nil },
		QPS:             -1,
	}
}

func (c *Cluster) writeKubeconfig(path string, u user) error {
	conf := clientcmdapi.NewConfig()
	conf.Clusters["test"] = &clientcmdapi.Cluster{
		Server: "https://" + c.api.String(), CertificateAuthority: c.path("pki", "ca.crt"),
	}
	conf.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: u.token}
	conf.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	conf.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*conf, path); err != nil {
		return fmt.Errorf("write kubeconfig %q: %w", path, err)
	}
	return nil
}

// startEtcd starts etcd without TLS: it listens on this machine only.
func (c *Cluster) startEtcd(path string) error {
	_, err := c.spawn("etcd", path,
		"--name=test", "--data-dir="+c.path("etcd"), "--initial-cluster=test="+c.peer,
		"--listen-client-urls="+c.etcd, "--advertise-client-urls="+c.etcd,
		"--listen-peer-urls="+c.peer, "--initial-advertise-peer-urls="+c.peer)
	return err
}

func (c *Cluster) apiServerArgs() []string {
	pki := func(name string) string { return c.path("pki", name) }
	args := []string{
		"--etcd-servers=" + c.etcd,
		"--bind-address=" + c.api.IP.String(), fmt.Sprintf("--secure-port=%d", c.api.Port),
		"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
		"--client-ca-file=" + pki("ca.crt"), "--token-auth-file=" + pki("tokens.csv"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc", "--api-audiences=https://kubernetes.default.svc",
		"--service-account-key-file=" + pki("serviceaccount.pub"),
		"--service-account-signing-key-file=" + pki("serviceaccount.key"),
		"--allow-privileged=true", "--service-cluster-ip-range=" + c.net.services(),
		"--requestheader-client-ca-file=" + pki("ca.crt"), "--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--kubelet-client-certificate=" + pki("kubelet-client.crt"),
		"--kubelet-client-key=" + pki("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
	}
	if c.o.Kubelet == "" {
		args = append(args, "--endpoint-reconciler-type=none") // no client reaches a loopback address through a Service
	}
	if !c.o.Controllers {
		args = append(args, "--disable-admission-plugins=ServiceAccount") // nothing makes the accounts it asks for
	}
	return append(args, c.o.APIServerArgs...)
}

// waitReady returns when the server says that it is ready.
func (c *Cluster) waitReady(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	return c.wait(ctx, "API server", func(ctx context.Context) error {
		return client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

func (c *Cluster) startControllers(bin map[string]string) error {
	conf := c.path("controllers.kubeconfig")
	_, err := c.spawn("kube-controller-manager", bin["kube-controller-manager"],
		"--kubeconfig="+conf, "--authentication-kubeconfig="+conf, "--authorization-kubeconfig="+conf,
		"--bind-address="+c.local.String(), fmt.Sprintf("--secure-port=%d", c.ports.manager), "--leader-elect=false",
		"--use-service-account-credentials=true", "--root-ca-file="+c.path("pki", "ca.crt"),
		"--service-account-private-key-file="+c.path("pki", "serviceaccount.key"),
		"--flex-volume-plugin-dir="+c.path("volume-plugins"))
	if err != nil {
		return err
	}
	conf = c.path("scheduler.kubeconfig")
	_, err = c.spawn("kube-scheduler", bin["kube-scheduler"],
		"--kubeconfig="+conf, "--authentication-kubeconfig="+conf, "--authorization-kubeconfig="+conf,
		"--bind-address="+c.local.String(), fmt.Sprintf("--secure-port=%d", c.ports.scheduler), "--leader-elect=false")
	return err
}

// waitControlPlane returns when the namespace "default" can be used: with controllers, that it has the objects that a pod
// needs.
func (c *Cluster) waitControlPlane(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.rest)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	return c.wait(ctx, "namespace default", func(ctx context.Context) error {
		if _, err := client.CoreV1().Namespaces().Get(ctx, corev1.NamespaceDefault, metav1.GetOptions{}); err != nil {
			return err
		}
		if !c.o.Controllers {
			return nil
		}
		_, err := client.CoreV1().ServiceAccounts(corev1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		if err != nil {
			return err
		}
		_, err = client.CoreV1().ConfigMaps(corev1.NamespaceDefault).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
}
