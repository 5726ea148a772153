// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command kstatus writes the status that kstatus gives each object of a JSON list on its input, one on a line.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	var objects []map[string]any
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		log.Fatal(err)
	}
	for _, o := range objects {
		result, err := status.Compute(&unstructured.Unstructured{Object: o})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(result.Status)
	}
}
