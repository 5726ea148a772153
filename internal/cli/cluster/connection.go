// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/version"
)

// requestTimeout is how long one request may take if --request-timeout says nothing. A watch has no limit.
const requestTimeout = 30 * time.Second

func init() { klog.SetLogger(logr.Discard()) } // the log of client-go is for programs that go on: here an error says it all

// connection is the user's way to the API server, by the flags of kubectl. Nothing is read before a verb needs it.
type connection struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

func (c *connection) addFlags(f *pflag.FlagSet) {
	c.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	f.StringVar(&c.rules.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "Path to the kubeconfig file to use for CLI requests")
	flags := clientcmd.RecommendedConfigOverrideFlags("")
	flags.Timeout.Default = requestTimeout.String()
	clientcmd.BindOverrideFlags(&c.overrides, f, flags)
}

// newClient makes the client of a verb.
func (c *connection) newClient() (*client, error) {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(c.rules, &c.overrides)
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("there is no kubeconfig: name one with --kubeconfig or KUBECONFIG: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	made, err := newClient(config, namespace)
	if err != nil {
		return nil, err
	}
	made.flags = c.givenFlags()
	return made, nil
}

// givenFlags are the flags by which this call has found the API server and says who the user is, for the commands that
// are printed. Credentials are not among them.
func (c *connection) givenFlags() (flags []string) {
	o := &c.overrides
	named := []struct{ name, value string }{
		{clientcmd.RecommendedConfigPathFlag, c.rules.ExplicitPath}, {clientcmd.FlagContext, o.CurrentContext},
		{clientcmd.FlagClusterName, o.Context.Cluster}, {clientcmd.FlagAuthInfoName, o.Context.AuthInfo},
		{clientcmd.FlagImpersonate, o.AuthInfo.Impersonate}, {clientcmd.FlagImpersonateUID, o.AuthInfo.ImpersonateUID},
	}
	for _, group := range o.AuthInfo.ImpersonateGroups {
		named = append(named, struct{ name, value string }{clientcmd.FlagImpersonateGroup, group})
	}
	for _, f := range named {
		if f.value != "" {
			flags = append(flags, "--"+f.name+"="+f.value)
		}
	}
	return flags
}

// client asks one API server.
type client struct {
	// namespace is the one that is meant if none is named.
	namespace string

	config  *rest.Config
	http    *http.Client
	codecs  serializer.CodecFactory
	timeout time.Duration // of one request; 0: none
	flags   []string
}

func newClient(config *rest.Config, namespace string) (*client, error) {
	config = rest.CopyConfig(config)
	apiClient := &client{namespace: namespace, config: config, timeout: config.Timeout}
	config.Timeout = 0 // it would end watches
	config.UserAgent = "kubectl-kubediag/" + version.String()
	config.QPS, config.Burst = -1, 0 // a person is slow enough
	config.WarningHandler = rest.NewWarningWriter(printable.Writer(os.Stderr), rest.WarningWriterOptions{Deduplicate: true})
	scheme := runtime.NewScheme()
	if err := groupVersions.AddToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	apiClient.codecs = serializer.NewCodecFactory(scheme)
	var err error
	if apiClient.http, err = rest.HTTPClientFor(config); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return apiClient, nil
}

// restClient is the client of one group and version.
func (c *client) restClient(gv schema.GroupVersion) (rest.Interface, error) {
	config := rest.CopyConfig(c.config)
	config.GroupVersion, config.APIPath = &gv, "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = c.codecs.WithoutConversion()
	return rest.RESTClientForConfigAndClient(config, c.http)
}
