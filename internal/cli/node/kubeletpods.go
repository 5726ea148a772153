// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"kubediag.org/kubediag/internal/kubelet"
)

// kubeletTimeout bounds how long the kubelet is waited for.
const kubeletTimeout = 3 * time.Second

// podsOfKubelet asks the kubelet for its pods, if it answers without a login. It never gives the proof that a pod is gone: a
// kubelet that has not heard from the API server since its start knows few of its pods.
func podsOfKubelet(ctx context.Context, n *kubelet.Node) (podFile, error) {
	port, err := n.ReadOnlyPort(ctx)
	if port == 0 || err != nil {
		return nil, err
	}
	address := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + "/pods"
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true}, // with no proxy
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("it redirects") },
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet for pods: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask the kubelet for pods: %s answers %s", address, response.Status)
	}
	pods, err := parsePods(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read pods of the kubelet: %w", err)
	}
	return pods, nil
}
