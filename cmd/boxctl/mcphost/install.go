// SPDX-License-Identifier: Apache-2.0

package mcphost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/archive"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// Bounds of what is copied, and of installing.
const (
	maxBytes, maxFile, maxEntries = 1 << 30, 256 << 20, 200_000

	attempts       = 3
	firstPause     = time.Second // then twice as long
	maxErrorOutput = 2 << 10     // of what an installer has written, in an error
)

// prepare copies the project into the box and installs what it needs there, within a time.
func (r *runner) prepare(ctx context.Context, id string) error {
	if r.Plan.dir == "" {
		return nil
	}
	r.record.phase(ctx, "dependencies", 1, "")
	if err := r.copy(ctx, id); err != nil {
		return fmt.Errorf("copy %s: %w", r.Plan.dir, err)
	}
	timeoutCtx, cancel := context.WithTimeoutCause(ctx, r.Within, fmt.Errorf("not finished within %v", r.Within))
	defer cancel()
	for i := range r.Plan.installs {
		if err := r.install(timeoutCtx, id, &r.Plan.installs[i]); err != nil {
			if ctx.Err() == nil && timeoutCtx.Err() != nil {
				err = fmt.Errorf("%s: %w%s", r.Plan.installs[i].file, context.Cause(timeoutCtx), r.output)
			}
			return err
		}
	}
	return nil
}

// copy sends the project. What it is on the host stays as it is.
func (r *runner) copy(ctx context.Context, id string) error {
	dir, err := os.OpenRoot(r.Plan.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	in, out := io.Pipe()
	done := make(chan struct{})
	go func() { // ends with the upload, which closes in
		defer close(done)
		_, err := archive.PackSome(out, dir, r.Plan.names, archive.Bounds{Bytes: maxBytes, Entries: maxEntries, File: maxFile})
		out.CloseWithError(err)
	}()
	_, err = r.Client.UploadArchive(ctx, id, client.Upload{Path: projectDir, OutwardLinks: true}, in)
	_ = in.Close() // cannot fail
	<-done
	return err
}

// retry does something that may fail for a while, once more after a pause if it says so: what boxd refuses it refuses
// again. Each attempt at what has a name is said, and recorded with the last words of the one before it.
func (r *runner) retry(ctx context.Context, phase, what string, attempt func() (output string, retry bool, err error)) error {
	pause, words := firstPause, ""
	for n := 1; ; n++ {
		if what != "" || n > 1 {
			fmt.Fprintf(r.Stderr, "boxctl: %s, attempt %d of %d\n", strings.TrimSuffix(phase+": "+what, ": "), n, attempts)
		}
		r.record.phase(ctx, phase, n, words)
		output, retry, err := attempt()
		if err == nil || !retry || n == attempts {
			return err
		}
		if words = output; words == "" {
			words = err.Error()
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return err
		}
	}
}

// transient reports whether an error is boxd's word that it may be otherwise in a while.
func transient(err error) bool {
	p, ok := errors.AsType[*client.Error](err)
	return ok && (p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable)
}

// install runs one installer. A box without it has it at no later attempt.
func (r *runner) install(ctx context.Context, id string, what *install) error {
	return r.retry(ctx, "dependencies", what.file, func() (string, bool, error) {
		r.output.text = nil
		retry, err := r.installOnce(ctx, id, what, r.output)
		return r.output.String(), retry, err
	})
}

func (r *runner) installOnce(ctx context.Context, id string, what *install, output *tail) (retry bool, err error) {
	timeout := r.Within
	if end, ok := ctx.Deadline(); ok {
		timeout = time.Until(end)
	}
	env := map[string]string{}
	maps.Copy(env, r.Plan.InstallEnv)
	maps.Copy(env, r.Plan.Server.Env)
	result, err := r.Client.ExecStream(ctx, id, &api.ExecRequest{
		Argv: what.argv, Cwd: projectDir, Env: env, Timeout: new(quantity.Duration(timeout)),
	}, client.Stdio{Stdout: output, Stderr: output}, nil)
	if _, ok := errors.AsType[*client.Error](err); ok {
		return transient(err), fmt.Errorf("%s: %w", what.file, err)
	}
	switch {
	case err != nil:
		return ctx.Err() == nil, fmt.Errorf("%s: %w", what.file, err)
	case result.Status == "exited" && *result.ExitCode == 0:
		return false, nil
	case result.Status == "timed_out":
		return false, fmt.Errorf("%s: not finished within %v%s", what.file, timeout.Round(time.Second), output)
	case result.Failure != nil:
		return false, fmt.Errorf("%s: %s does not start: %s", what.file, what.argv[0], result.Failure.Text)
	}
	return true, fmt.Errorf("%s: %s failed%s%s", what.file, what.argv[0], output, r.offline(ctx, id))
}

// offline says so where there is no network, which is most often why.
func (r *runner) offline(ctx context.Context, id string) string {
	if s, err := r.Client.Session(ctx, id); err == nil && s.Network == "off" {
		return "\nhint: the box has no network: --network egress gives it one"
	}
	return ""
}

// tail keeps the end of what a program writes.
type tail struct{ text []byte }

// Write keeps the end.
func (t *tail) Write(b []byte) (int, error) {
	t.text = append(t.text, b...)
	if len(t.text) > maxErrorOutput {
		t.text = append([]byte(nil), t.text[len(t.text)-maxErrorOutput:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(t.text), "\uFFFD"))
	if text == "" {
		return ""
	}
	return ":\n" + text
}
