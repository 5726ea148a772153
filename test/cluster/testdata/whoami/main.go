// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command whoami runs in a pod and asks the API server, with the pod's own ServiceAccount, who it is.
package main

import (
	"context"
	"fmt"
	"os"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func main() {
	name, err := whoami()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(name)
}

func whoami() (string, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return "", err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	ask := &authenticationv1.SelfSubjectReview{}
	answer, err := client.AuthenticationV1().SelfSubjectReviews().Create(context.Background(), ask, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return answer.Status.UserInfo.Username, nil
}
