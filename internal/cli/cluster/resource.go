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

// groupVersions are the kinds that the verbs use.
var groupVersions = runtime.NewSchemeBuilder(v1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme, coordinationv1.AddToScheme, authorizationv1.AddToScheme,
	authenticationv1.AddToScheme, admissionv1.AddToScheme, batchv1.AddToScheme)

// apiResource is what the API server serves at one path.
type apiResource struct {
	schema.GroupVersion
	name   string
	global bool // it is in no namespace
}

// The resources that the verbs use.
var (
	diagnoses         = apiResource{GroupVersion: v1.GroupVersion, name: "diagnoses"}
	approvals         = apiResource{GroupVersion: v1.GroupVersion, name: "recoveryapprovals"}
	mountFaults       = apiResource{GroupVersion: v1.GroupVersion, name: "mountfaults"}
	operationSets     = apiResource{GroupVersion: v1.GroupVersion, name: "operationsets", global: true}
	configMaps        = apiResource{GroupVersion: corev1.SchemeGroupVersion, name: "configmaps"}
	events            = apiResource{GroupVersion: corev1.SchemeGroupVersion, name: "events"}
	pods              = apiResource{GroupVersion: corev1.SchemeGroupVersion, name: "pods"}
	volumeClaims      = apiResource{GroupVersion: corev1.SchemeGroupVersion, name: "persistentvolumeclaims"}
	nodes             = apiResource{GroupVersion: corev1.SchemeGroupVersion, name: "nodes", global: true}
	namespaces        = apiResource{GroupVersion: corev1.SchemeGroupVersion, name: "namespaces", global: true}
	daemonSets        = apiResource{GroupVersion: appsv1.SchemeGroupVersion, name: "daemonsets"}
	deployments       = apiResource{GroupVersion: appsv1.SchemeGroupVersion, name: "deployments"}
	leases            = apiResource{GroupVersion: coordinationv1.SchemeGroupVersion, name: "leases"}
	accessReviews     = apiResource{GroupVersion: authorizationv1.SchemeGroupVersion, name: "selfsubjectaccessreviews", global: true}
	selfAccessReviews = apiResource{GroupVersion: authenticationv1.SchemeGroupVersion, name: "selfsubjectreviews", global: true}
	admissionPolicies = apiResource{GroupVersion: admissionv1.SchemeGroupVersion, name: "validatingadmissionpolicies", global: true}
	policyBindings    = apiResource{GroupVersion: admissionv1.SchemeGroupVersion, name: "validatingadmissionpolicybindings", global: true}
)

// String is the resource as kubectl names it.
func (r apiResource) String() string {
	if r.Group == "" {
		return r.name
	}
	return r.name + "." + r.Group
}

// resourcePlace is a resource in a namespace; in all namespaces if that is empty.
type resourcePlace struct {
	apiResource
	namespace string
}

// inNamespace is the resource in a namespace.
func (r apiResource) inNamespace(namespace string) resourcePlace { return resourcePlace{r, namespace} }

// limited is the context of one request.
func (c *client) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.timeout)
}

// doRequest sends one request, and decodes the answer unless into is nil.
func (c *client) doRequest(ctx context.Context, action requestAction, build func(rest.Interface) *rest.Request, into runtime.Object) error {
	client, err := c.restClient(action.GroupVersion)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	result := build(client).NamespaceIfScoped(action.namespace, action.namespace != "" && !action.global).Resource(action.name).Do(ctx)
	if into == nil {
		return c.requestError(action, result.Error())
	}
	return c.requestError(action, result.Into(into))
}

func (c *client) getObject(ctx context.Context, p resourcePlace, name string, into runtime.Object) error {
	return c.doRequest(ctx, requestAction{"get", p, name}, func(r rest.Interface) *rest.Request { return r.Get().Name(name) }, into)
}

func (c *client) listObjects(ctx context.Context, p resourcePlace, o metav1.ListOptions, into runtime.Object) error {
	return c.doRequest(ctx, requestAction{"list", p, ""}, func(r rest.Interface) *rest.Request {
		return r.Get().SpecificallyVersionedParams(&o, metav1.ParameterCodec, optionsVersion)
	}, into)
}

// listTableOf lists the objects of a place as the table that the API server makes of them.
func (c *client) listTableOf(ctx context.Context, place resourcePlace, o metav1.ListOptions, into *metav1.Table) error {
	err := c.doRequest(ctx, requestAction{"list", place, ""}, func(r rest.Interface) *rest.Request {
		return r.Get().SpecificallyVersionedParams(&o, metav1.ParameterCodec, optionsVersion).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	}, into)
	if err != nil {
		return err
	}
	for i := range into.Rows {
		of := &metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(into.Rows[i].Object.Raw, of); err != nil {
			return fmt.Errorf("read table of %s: %w", place.apiResource, err)
		}
		into.Rows[i].Object.Object = of
	}
	return nil
}

// readPath reads a path of the API server that has no type here. The path of an object that is not there is not served.
func (c *client) readPath(ctx context.Context, path string) ([]byte, error) {
	client, err := c.restClient(optionsVersion)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	result := client.Get().AbsPath(path).Do(ctx)
	if err := result.Error(); apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get %s: %w", path, errNotServed)
	} else if err != nil {
		return nil, c.requestError(requestAction{"get", resourcePlace{apiResource: apiResource{name: path}}, ""}, err)
	}
	return result.Raw()
}

// createObject creates an object, and reads it back into the same.
func (c *client) createObject(ctx context.Context, p resourcePlace, object runtime.Object) error {
	return c.doRequest(ctx, requestAction{"create", p, ""}, func(r rest.Interface) *rest.Request { return r.Post().Body(object) }, object)
}

// deleteObject deletes an object if it is still the one with this UID.
func (c *client) deleteObject(ctx context.Context, p resourcePlace, of *metav1.ObjectMeta) error {
	o := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(of.UID))}
	return c.doRequest(ctx, requestAction{"delete", p, of.Name},
		func(r rest.Interface) *rest.Request { return r.Delete().Name(of.Name).Body(o) }, nil)
}

func (c *client) watchObjects(ctx context.Context, place resourcePlace, o metav1.ListOptions) (watch.Interface, error) {
	client, err := c.restClient(place.GroupVersion)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	o.Watch = true
	w, err := client.Get().NamespaceIfScoped(place.namespace, place.namespace != "" && !place.global).Resource(place.name).
		SpecificallyVersionedParams(&o, metav1.ParameterCodec, optionsVersion).Watch(ctx)
	return w, c.requestError(requestAction{"watch", place, ""}, err)
}

// errNotServed is in the error of a request for a resource that the API server does not know.
var errNotServed = errors.New("not served")

// errMissing is in the error of a request for an object that is not there.
var errMissing = errors.New("not found")

// requestAction is what was asked of the API server.
type requestAction struct {
	verb string
	resourcePlace
	object string // its name; empty for those of a place
}

// isAboutObject reports whether the API server's answer is about an object of this resource, and not about its
// namespace.
func isAboutObject(err error, name string) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == name
}

// objectName is the name of the object, with its namespace.
func (a requestAction) objectName() string {
	if a.global || a.namespace == "" {
		return a.object
	}
	return a.namespace + "/" + a.object
}

// requestError turns the API server's answer into an error that says what to do.
func (c *client) requestError(action requestAction, err error) error {
	var dial *net.OpError
	var address *url.Error
	switch {
	case err == nil:
		return nil
	case isNotServed(err) && action.Group == v1.Group:
		return fmt.Errorf("kubediag is not installed: the API server serves no %s: apply config/default, and see docs/install.md: %w", action.apiResource, errNotServed)
	case isNotServed(err):
		return fmt.Errorf("the API server serves no %s: %w", action.apiResource, errNotServed)
	case apierrors.IsNotFound(err) && isAboutObject(err, action.name):
		return fmt.Errorf("%s %s: %w", action.apiResource, action.objectName(), errMissing)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: %w", verb.ErrRefused, err) // it names the user, the verb and the resource, or the policy
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not accept the credentials of the kubeconfig: %w", err)
	case errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return fmt.Errorf("%s %s: the API server did not answer within %s: give it more with --request-timeout", action.verb, action.apiResource, c.timeout)
	case errors.As(err, &address) && errors.As(err, &dial):
		return fmt.Errorf("the API server at %s is not reached: %w", c.config.Host, dial)
	}
	return fmt.Errorf("%s %s: %w", action.verb, action.apiResource, err)
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
