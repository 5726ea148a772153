// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ceph

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"
)

// maxAnswer bounds what is taken from an admin socket, in bytes.
const maxAnswer = 16 << 20

// ask sends a command to the admin socket of a daemon, as "ceph daemon" does, and decodes the answer into result.
func ask(ctx context.Context, socket string, command map[string]any, result any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("reach admin socket: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	command["format"] = "json"
	request, err := json.Marshal(command)
	if err != nil {
		return fmt.Errorf("encode command: %w", err)
	}
	if _, err := conn.Write(append(request, 0)); err != nil {
		return fmt.Errorf("send %q: %w", command["prefix"], err)
	}
	var size uint32
	if err := binary.Read(conn, binary.BigEndian, &size); err != nil {
		return fmt.Errorf("read answer to %q: %w", command["prefix"], err)
	}
	answer, err := io.ReadAll(io.LimitReader(conn, min(int64(size), maxAnswer)))
	if err != nil {
		return fmt.Errorf("read answer to %q: %w", command["prefix"], err)
	}
	if len(answer) == 0 || result == nil {
		return nil
	}
	if err := json.Unmarshal(answer, result); err != nil {
		return fmt.Errorf("decode answer to %q: %w: %q", command["prefix"], err, answer)
	}
	return nil
}
