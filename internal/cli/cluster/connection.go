// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// requestTimeout is how long one request may take if --request-timeout says nothing. A watch has no limit.
const requestTimeout = 30 * time.Second

func init() { // the log of client-go is for programs that go on: here an error says it all
	klog.SetLogger(logr.Discard())
	log.SetLogger(logr.Discard())
	utilruntime.ErrorHandlers = nil
}

// connection is the user's way to the API server, by the flags of kubectl. Nothing is read before a verb needs it.
type connection struct {
	flags *genericclioptions.ConfigFlags
	set   *pflag.FlagSet
}

// newClient makes the client of a verb.
func (c *connection) newClient() (*client, error) {
	loader := c.flags.ToRawKubeConfigLoader()
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if raw, err := loader.RawConfig(); err == nil && clientcmdapi.IsConfigEmpty(&raw) && *c.flags.APIServer == "" && config.Host == clientcmd.ClusterDefaults.Server {
		return nil, errors.New("there is no kubeconfig: name one with --kubeconfig or KUBECONFIG")
	}
	if !c.set.Changed("request-timeout") {
		config.Timeout = requestTimeout
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	made, err := newClient(config, namespace)
	if err != nil {
		return nil, err
	}
	// The commands that are printed find the API server as this call has, and say who the user is. Credentials are not among their flags.
	for _, name := range []string{"kubeconfig", "context", "cluster", "user", "as", "as-uid"} {
		if value := c.set.Lookup(name).Value.String(); value != "" {
			made.flags = append(made.flags, "--"+name+"="+value)
		}
	}
	for _, group := range *c.flags.ImpersonateGroup {
		made.flags = append(made.flags, "--as-group="+group)
	}
	return made, nil
}
