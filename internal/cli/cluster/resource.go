// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
)

// optionsVersion is the version of the options of requests.
var optionsVersion = schema.GroupVersion{Version: "v1"}

// groups are the kinds that the verbs use.
var groups = runtime.NewSchemeBuilder(v1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme, coordinationv1.AddToScheme, authorizationv1.AddToScheme,
	authenticationv1.AddToScheme, admissionv1.AddToScheme, batchv1.AddToScheme)

// resource is what the API server serves at one path.
type resource struct {
	schema.GroupVersion
	name   string
	global bool // it is in no namespace
}

// The resources that the verbs use.
var (
	diagnoses   = resource{GroupVersion: v1.GroupVersion, name: "diagnoses"}
	approvals   = resource{GroupVersion: v1.GroupVersion, name: "recoveryapprovals"}
	mountFaults = resource{GroupVersion: v1.GroupVersion, name: "mountfaults"}
	sets        = resource{GroupVersion: v1.GroupVersion, name: "operationsets", global: true}
	configMaps  = resource{GroupVersion: corev1.SchemeGroupVersion, name: "configmaps"}
	pods        = resource{GroupVersion: corev1.SchemeGroupVersion, name: "pods"}
	claims      = resource{GroupVersion: corev1.SchemeGroupVersion, name: "persistentvolumeclaims"}
	nodes       = resource{GroupVersion: corev1.SchemeGroupVersion, name: "nodes", global: true}
	namespaces  = resource{GroupVersion: corev1.SchemeGroupVersion, name: "namespaces", global: true}
	daemonSets  = resource{GroupVersion: appsv1.SchemeGroupVersion, name: "daemonsets"}
	deployments = resource{GroupVersion: appsv1.SchemeGroupVersion, name: "deployments"}
	leases      = resource{GroupVersion: coordinationv1.SchemeGroupVersion, name: "leases"}
	reviews     = resource{GroupVersion: authorizationv1.SchemeGroupVersion, name: "selfsubjectaccessreviews", global: true}
	selfReviews = resource{GroupVersion: authenticationv1.SchemeGroupVersion, name: "selfsubjectreviews", global: true}
	policies    = resource{GroupVersion: admissionv1.SchemeGroupVersion, name: "validatingadmissionpolicies", global: true}
	bindings    = resource{GroupVersion: admissionv1.SchemeGroupVersion, name: "validatingadmissionpolicybindings", global: true}
)

// String is the resource as kubectl names it.
func (r resource) String() string {
	if r.Group == "" {
		return r.name
	}
	return r.name + "." + r.Group
}

// place is a resource in a namespace; in all namespaces if that is empty.
type place struct {
	resource
	namespace string
}

// in is the resource in a namespace.
func (r resource) in(namespace string) place { return place{r, namespace} }

// limited is the context of one request.
func (c *client) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.timeout)
}

// do sends one request, and decodes the answer unless into is nil.
func (c *client) do(ctx context.Context, a action, build func(rest.Interface) *rest.Request, into runtime.Object) error {
	client, err := c.of(a.GroupVersion)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	result := build(client).NamespaceIfScoped(a.namespace, a.namespace != "" && !a.global).Resource(a.name).Do(ctx)
	if into == nil {
		return c.said(a, result.Error())
	}
	return c.said(a, result.Into(into))
}

func (c *client) get(ctx context.Context, p place, name string, into runtime.Object) error {
	return c.do(ctx, action{"get", p, name}, func(r rest.Interface) *rest.Request { return r.Get().Name(name) }, into)
}

func (c *client) list(ctx context.Context, p place, o metav1.ListOptions, into runtime.Object) error {
	return c.do(ctx, action{"list", p, ""}, func(r rest.Interface) *rest.Request {
		return r.Get().SpecificallyVersionedParams(&o, metav1.ParameterCodec, optionsVersion)
	}, into)
}

// table lists the objects of a place as the table that the API server makes of them.
func (c *client) table(ctx context.Context, p place, o metav1.ListOptions, into *metav1.Table) error {
	err := c.do(ctx, action{"list", p, ""}, func(r rest.Interface) *rest.Request {
		return r.Get().SpecificallyVersionedParams(&o, metav1.ParameterCodec, optionsVersion).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	}, into)
	if err != nil {
		return err
	}
	for i := range into.Rows {
		of := &metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(into.Rows[i].Object.Raw, of); err != nil {
			return fmt.Errorf("read table of %s: %w", p.resource, err)
		}
		into.Rows[i].Object.Object = of
	}
	return nil
}

// raw reads a path of the API server that has no type here. The path of an object that is not there is not served.
func (c *client) raw(ctx context.Context, path string) ([]byte, error) {
	client, err := c.of(optionsVersion)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	result := client.Get().AbsPath(path).Do(ctx)
	if err := result.Error(); apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get %s: %w", path, errNotServed)
	} else if err != nil {
		return nil, c.said(action{"get", place{resource: resource{name: path}}, ""}, err)
	}
	return result.Raw()
}

// create creates an object, and reads it back into the same.
func (c *client) create(ctx context.Context, p place, object runtime.Object) error {
	return c.do(ctx, action{"create", p, ""}, func(r rest.Interface) *rest.Request { return r.Post().Body(object) }, object)
}

// remove deletes an object if it is still the one with this UID.
func (c *client) remove(ctx context.Context, p place, of *metav1.ObjectMeta) error {
	o := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(of.UID))}
	return c.do(ctx, action{"delete", p, of.Name}, func(r rest.Interface) *rest.Request { return r.Delete().Name(of.Name).Body(o) }, nil)
}

func (c *client) watch(ctx context.Context, p place, o metav1.ListOptions) (watch.Interface, error) {
	client, err := c.of(p.GroupVersion)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	o.Watch = true
	w, err := client.Get().NamespaceIfScoped(p.namespace, p.namespace != "" && !p.global).Resource(p.name).
		SpecificallyVersionedParams(&o, metav1.ParameterCodec, optionsVersion).Watch(ctx)
	return w, c.said(action{"watch", p, ""}, err)
}

// errNotServed is in the error of a request for a resource that the API server does not know.
var errNotServed = errors.New("not served")

// errMissing is in the error of a request for an object that is not there.
var errMissing = errors.New("not found")

// action is what was asked of the API server.
type action struct {
	verb string
	place
	object string // its name; empty for those of a place
}

// about reports whether the API server's answer is about an object of this resource, and not about its namespace.
func about(err error, name string) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == name
}

// full is the name of the object, with its namespace.
func (a action) full() string {
	if a.global || a.namespace == "" {
		return a.object
	}
	return a.namespace + "/" + a.object
}

// said turns the API server's answer into an error that says what to do.
func (c *client) said(a action, err error) error {
	var dial *net.OpError
	var address *url.Error
	switch {
	case err == nil:
		return nil
	case notServed(err) && a.Group == v1.Group:
		return fmt.Errorf("kubediag is not installed: the API server serves no %s: apply config/default, and see docs/install.md: %w", a.resource, errNotServed)
	case notServed(err):
		return fmt.Errorf("the API server serves no %s: %w", a.resource, errNotServed)
	case apierrors.IsNotFound(err) && about(err, a.name):
		return fmt.Errorf("%s %s: %w", a.resource, a.full(), errMissing)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: %w", verb.ErrRefused, err) // it names the user, the verb and the resource, or the policy
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not accept the credentials of the kubeconfig: %w", err)
	case errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return fmt.Errorf("%s %s: the API server did not answer within %s: give it more with --request-timeout", a.verb, a.resource, c.timeout)
	case errors.As(err, &address) && errors.As(err, &dial):
		return fmt.Errorf("the API server at %s is not reached: %w", c.config.Host, dial)
	}
	return fmt.Errorf("%s %s: %w", a.verb, a.resource, err)
}

// notServed reports whether the path of a request is unknown, and not only the object.
func notServed(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || details.Name == "" || len(details.Causes) > 0 && details.Causes[0].Type == metav1.CauseTypeUnexpectedServerResponse
}
