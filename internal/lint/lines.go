// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// lines are the lines of the fields of a document, by the way to each.
type lines map[string]int

// of is the line of a field; 0 if it is not known.
func (l lines) of(field string) int { return l[field] }

// parseLines reads the lines of a document. It has none if the document can be read as JSON alone.
func parseLines(d document) lines {
	var node yaml.Node
	if yaml.Unmarshal(d.text, &node) != nil || len(node.Content) == 0 {
		return nil
	}
	l := lines{}
	l.walk(node.Content[0], "", d.line-1)
	return l
}

// walk notes a node and all below it. A node that an alias stands for is noted at its own place alone.
func (l lines) walk(node *yaml.Node, at string, offset int) {
	l[at] = node.Line + offset
	switch node.Kind {
	case yaml.SequenceNode:
		for i, item := range node.Content {
			l.walk(item, fmt.Sprintf("%s[%d]", at, i), offset)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			name := node.Content[i].Value
			if at != "" {
				name = at + "." + name
			}
			l.walk(node.Content[i+1], name, offset)
		}
	case yaml.DocumentNode, yaml.ScalarNode, yaml.AliasNode:
	}
}
