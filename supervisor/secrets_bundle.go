// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// bundleTimeout bounds the writing of one file.
const bundleTimeout = 30 * time.Second

// writeBundle writes the CA certificates that programs should trust into a file of a box. Its user can change it for itself only.
func writeBundle(ctx context.Context, box *client.Box, to string, own []byte) error {
	text, err := bundle(own)
	if err != nil {
		return fmt.Errorf("CA certificates of the host: %w", err)
	}
	req := files.Request{Write: &files.Write{Path: []byte(to), How: files.Overwrite, Parents: true, Most: int64(len(text))}}
	head, err := req.Encode()
	if err != nil {
		return err
	}
	in := bytes.NewBuffer(head)
	w := files.NewWriter(in)
	_, err = w.Write(text)
	if err = cmp.Or(err, w.End()); err != nil {
		return err
	}
	stdin, err := process.MemoryFile("stdin", in.Bytes())
	if err != nil {
		return err
	}
	defer stdin.Close()
	p, err := box.Start(&isolation.Command{
		Argv: []string{isolation.FilesProgram}, Env: []string{"GOMAXPROCS=1"}, Dir: isolation.Workspace, ScriptArg: -1, Stdin: isolation.StdinFile,
		Timeout: bundleTimeout, Output: isolation.Output{Head: files.MaxData},
	}, client.Files{Stdin: stdin})
	if err != nil {
		return err
	}
	defer p.Close()
	exit, err := p.Wait(ctx)
	if err != nil {
		return err
	}
	output, _, err := p.Retained(0)
	if err != nil {
		return err
	}
	a, err := files.Receive(bytes.NewReader(output), io.Discard, 0)
	if err != nil {
		return fmt.Errorf("write %s: the program in the box has ended with %v %d: %w", to, exit.Reason, exit.Code, err)
	}
	if a.Failure != nil {
		return fault.Errorf(fault.Exhausted, "write %s: %s", to, a.Failure.Kind).WithHint("a session with secrets needs 1 MiB of tmp; raise its tmp limit")
	}
	return nil
}
