// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/version"
)

// groupVersions are the kinds that the verbs use.
var groupVersions = runtime.NewSchemeBuilder(v1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme, coordinationv1.AddToScheme, authorizationv1.AddToScheme,
	authenticationv1.AddToScheme, admissionv1.AddToScheme, batchv1.AddToScheme)

// globalKinds are those that are in no namespace.
var globalKinds = []string{
	"OperationSet", "Node", "Namespace", "SelfSubjectAccessReview", "SelfSubjectReview", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	definitionKind.Kind,
}

// Kinds of which names are completed.
var (
	diagnosisKind = v1.GroupVersion.WithKind("Diagnosis")
	nodeKind      = corev1.SchemeGroupVersion.WithKind("Node")
	namespaceKind = corev1.SchemeGroupVersion.WithKind("Namespace")
	podKind       = corev1.SchemeGroupVersion.WithKind("Pod")
	daemonSetKind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")
	claimKind     = corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim")
)

// definitionKind is that of the definitions of our kinds. They are read without their Go types.
var definitionKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// client asks one API server.
type client struct {
	// server reads and writes objects. Its errors name the next step.
	server ctrlclient.WithWatch
	// namespace is the default: the flag --namespace, or that of the kubeconfig's context.
	namespace string

	config  *rest.Config
	http    *http.Client
	codecs  serializer.CodecFactory
	timeout time.Duration // of one request; 0: none
	flags   []string
}

func newClient(config *rest.Config, namespace string) (*client, error) {
	config = rest.CopyConfig(config)
	c := &client{namespace: namespace, config: config, timeout: config.Timeout}
	config.Timeout = 0 // it would end watches
	config.UserAgent = "kubectl-kubediag/" + version.String()
	config.QPS, config.Burst = -1, 0 // a person is slow enough
	config.ContentType = runtime.ContentTypeJSON
	config.WarningHandler = rest.NewWarningWriter(printable.Writer(os.Stderr), rest.WarningWriterOptions{Deduplicate: true})
	scheme := runtime.NewScheme()
	if err := groupVersions.AddToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c.codecs = serializer.NewCodecFactory(scheme)
	var err error
	if c.http, err = rest.HTTPClientFor(config); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	mapper := meta.NewDefaultRESTMapper(nil) // of the kinds of the scheme, so that the API server need not list its kinds
	add := func(kind schema.GroupVersionKind) {
		scope := meta.RESTScopeNamespace
		if slices.Contains(globalKinds, kind.Kind) {
			scope = meta.RESTScopeRoot
		}
		mapper.Add(kind, scope)
	}
	for kind := range scheme.AllKnownTypes() {
		add(kind)
	}
	add(definitionKind)
	mapper.AddSpecific(diagnosisKind, v1.GroupVersion.WithResource("diagnoses"), v1.GroupVersion.WithResource("diagnosis"), meta.RESTScopeNamespace)
	server, err := ctrlclient.NewWithWatch(config, ctrlclient.Options{Scheme: scheme, Mapper: mapper, HTTPClient: c.http})
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	// Root of a node writes any text into the MountFaults of that node, and a person pastes their lines into a root shell, or where kubectl is. So
	// each carries lines of this program's catalogue alone.
	composer := fault.NewComposer(fault.Known())
	c.server = c.intercepted(server, func(f *v1.MountFault) {
		checkNames(f)
		c.writeOwnLines(composer, f)
	})
	return c, nil
}

// intercepted gives each request of a server a time limit, and errors that name the next step. It calls change with each MountFault of an
// answer.
func (c *client) intercepted(server ctrlclient.WithWatch, change func(*v1.MountFault)) ctrlclient.WithWatch {
	changeFaults := func(o runtime.Object) {
		switch o := o.(type) {
		case *v1.MountFault:
			change(o)
		case *v1.MountFaultList:
			for i := range o.Items {
				change(&o.Items[i])
			}
		}
	}
	do := func(ctx context.Context, verb string, o runtime.Object, key ctrlclient.ObjectKey, request func(context.Context) error) error {
		resource, err := resourceOf(server, o)
		if err != nil {
			return err
		}
		ctx, cancel := c.limit(ctx)
		defer cancel()
		err = request(ctx)
		changeFaults(o)
		return c.requestError(requestAction{verb, resource, key}, err)
	}
	return interceptor.NewClient(server, interceptor.Funcs{
		Get: func(ctx context.Context, s ctrlclient.WithWatch, key ctrlclient.ObjectKey, o ctrlclient.Object, opts ...ctrlclient.GetOption) error {
			return do(ctx, "get", o, key, func(ctx context.Context) error { return s.Get(ctx, key, o, opts...) })
		},
		List: func(ctx context.Context, s ctrlclient.WithWatch, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
			return do(ctx, "list", list, ctrlclient.ObjectKey{}, func(ctx context.Context) error { return s.List(ctx, list, opts...) })
		},
		Create: func(ctx context.Context, s ctrlclient.WithWatch, o ctrlclient.Object, opts ...ctrlclient.CreateOption) error {
			return do(ctx, "create", o, ctrlclient.ObjectKey{}, func(ctx context.Context) error { return s.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, s ctrlclient.WithWatch, o ctrlclient.Object, opts ...ctrlclient.DeleteOption) error {
			return do(ctx, "delete", o, ctrlclient.ObjectKeyFromObject(o), func(ctx context.Context) error { return s.Delete(ctx, o, opts...) })
		},
		Watch: func(ctx context.Context, s ctrlclient.WithWatch, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) (watch.Interface, error) {
			resource, err := resourceOf(s, list)
			if err != nil {
				return nil, err
			}
			w, err := s.Watch(ctx, list, opts...) // a watch has no limit
			if err != nil {
				return nil, c.requestError(requestAction{"watch", resource, ctrlclient.ObjectKey{}}, err)
			}
			return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
				changeFaults(e.Object)
				return e, true
			}), nil
		},
	})
}

// resourceOf is the resource of an object, or of a list.
func resourceOf(c ctrlclient.Client, o runtime.Object) (schema.GroupResource, error) {
	kind, err := c.GroupVersionKindFor(o)
	if err != nil {
		return schema.GroupResource{}, err
	}
	kind.Kind = strings.TrimSuffix(kind.Kind, "List")
	mapping, err := c.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return schema.GroupResource{}, err
	}
	return mapping.Resource.GroupResource(), nil
}

// restClient is the client of one group and version, for requests that are about no object.
func (c *client) restClient(of schema.GroupVersion) (rest.Interface, error) {
	made, err := apiutil.RESTClientForGVK(of.WithKind(""), true, false, c.config, c.codecs, c.http)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return made, nil
}

// limit is the context of one request.
func (c *client) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.timeout)
}

// errNotServed is in the error of a request for a resource that the API server does not know.
var errNotServed = errors.New("not served")

// errMissing is in the error of a request for an object that is not there.
var errMissing = errors.New("not found")

// keyOf is the key of an object in the namespace of the call.
func (c *client) keyOf(name string) ctrlclient.ObjectKey {
	return ctrlclient.ObjectKey{Namespace: c.namespace, Name: name}
}

// namespaceUnless is the namespace of the call; empty if it is for all of them.
func (c *client) namespaceUnless(all bool) string {
	if all {
		return ""
	}
	return c.namespace
}

// requestAction is the verb and the object of a request to the API server.
type requestAction struct {
	verb     string
	resource schema.GroupResource
	object   ctrlclient.ObjectKey // empty for several
}

// requestError turns the API server's answer into an error with the next step.
func (c *client) requestError(action requestAction, err error) error {
	var dial *net.OpError
	var address *url.Error
	var status apierrors.APIStatus
	aboutObject := errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == action.resource.Resource // and not about its namespace
	switch {
	case err == nil:
		return nil
	case isNotServed(err) && action.resource.Group == v1.Group:
		return fmt.Errorf("kubediag is not installed: the API server serves no %s: apply config/default, and see docs/install.md: %w", action.resource, errNotServed)
	case isNotServed(err):
		return fmt.Errorf("the API server serves no %s: %w", action.resource, errNotServed)
	case apierrors.IsNotFound(err) && aboutObject:
		return fmt.Errorf("%s %s: %w", action.resource, strings.TrimPrefix(action.object.String(), "/"), errMissing)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: %w", verb.ErrRefused, err) // it names the user, the verb and the resource, or the policy
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not accept the credentials of the kubeconfig: %w", err)
	case errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return fmt.Errorf("%s %s: the API server did not answer within %s: give it more with --request-timeout", action.verb, action.resource, c.timeout)
	case errors.As(err, &address) && errors.As(err, &dial):
		return fmt.Errorf("the API server at %s is not reached: %w", c.config.Host, dial)
	}
	return fmt.Errorf("%s %s: %w", action.verb, action.resource, err)
}

// isNotServed reports whether the path of a request is unknown, and not only the object.
func isNotServed(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || details.Name == "" || len(details.Causes) > 0 && details.Causes[0].Type == metav1.CauseTypeUnexpectedServerResponse
}
