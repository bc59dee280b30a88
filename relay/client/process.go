// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
)

// ErrNoName means that a call about a process got the empty id, which no process has.
var ErrNoName = errors.New("the process id is empty")

// StartProcess starts a process, or returns the one of that id, running or ended, if it was started with the same
// request; isNew tells which.
func (c *Client) StartProcess(ctx context.Context, id, p string, req *api.ProcessRequest) (state api.Process, isNew bool, err error) {
	return requestNew[api.Process](ctx, c, http.MethodPut, c.process(id, p, "", nil), req)
}

// Processes lists the processes of a session.
func (c *Client) Processes(ctx context.Context, id string) ([]api.Process, error) {
	list, err := request[api.ProcessList](ctx, c, http.MethodGet, c.session(id, "/processes", nil), nil)
	return list.Processes, err
}

// Process describes a process as soon as it has ended, but at the latest after wait.
func (c *Client) Process(ctx context.Context, id, p string, wait time.Duration) (api.Process, error) {
	query := url.Values{}
	if wait > 0 {
		query.Set("wait", wait.String())
	}
	return request[api.Process](ctx, c, http.MethodGet, c.process(id, p, "", query), nil)
}

// endTimeout is how long one request asks boxd to wait for an end.
const endTimeout = time.Minute

// ProcessEnd waits for the end of a process and describes it then. If the connection is lost meanwhile, as when boxd
// restarts, it reconnects.
func (c *Client) ProcessEnd(ctx context.Context, id, p string) (api.Process, error) {
	state, err := c.Process(ctx, id, p, 0) // fails at once if there is no boxd, or no process
	var tries retries
	for err == nil && state.State != "ended" {
		state, err = c.Process(ctx, id, p, endTimeout)
		switch {
		case err == nil:
			tries = retries{}
		case retryable(err) && ctx.Err() == nil:
			state, err = api.Process{}, tries.wait(ctx, &c.pace, err)
		}
	}
	return state, err
}

// StopProcess makes a process end as its request says, kills it if it does not, and returns when it has ended.
func (c *Client) StopProcess(ctx context.Context, id, p string) (api.Process, error) {
	return request[api.Process](ctx, c, http.MethodPost, c.process(id, p, "/stop", nil), nil)
}

// DeleteProcess ends a process and forgets it.
func (c *Client) DeleteProcess(ctx context.Context, id, p string) error {
	_, err := c.do(ctx, http.MethodDelete, c.process(id, p, "", nil), nil, nil)
	return err
}

// SignalProcess sends a signal such as SIGHUP to the process group of a process.
func (c *Client) SignalProcess(ctx context.Context, id, p, signal string) error {
	_, err := c.do(ctx, http.MethodPost, c.process(id, p, "/signal", nil), api.SignalRequest{Signal: signal}, nil)
	return err
}

// ResizeProcess gives the terminal of a process another size.
func (c *Client) ResizeProcess(ctx context.Context, id, p string, size api.Terminal) error {
	_, err := c.do(ctx, http.MethodPost, c.process(id, p, "/resize", nil), size, nil)
	return err
}

// RenewProcess renews the lease of a process.
func (c *Client) RenewProcess(ctx context.Context, id, p string) (api.Process, error) {
	return request[api.Process](ctx, c, http.MethodPost, c.process(id, p, "/renew", nil), nil)
}

// LogOptions select output of a process. Without any it is all that is stored.
type LogOptions struct {
	Follow bool      // continue until the process has ended
	Stream string    // only "stdout" or "stderr"
	From   *[2]int64 // begin at these bytes of stdout and stderr
	Tail   int64     // only so many bytes at the end of each stream
	Lines  *int      // only so many lines at the end
	Since  time.Time // only what was written since; zero: all
	Format string    // "text" (the default), "ndjson" (of api.LogLine) or "sse"
}

// Logs returns the output of a process.
func (c *Client) Logs(ctx context.Context, id, p string, o LogOptions) (io.ReadCloser, error) {
	query := queryOf("follow", yes(o.Follow), "tail", positive(o.Tail), "stream", o.Stream, "format", o.Format)
	if o.From != nil {
		query.Set("stdout", strconv.FormatInt(o.From[0], 10))
		query.Set("stderr", strconv.FormatInt(o.From[1], 10))
	}
	if o.Lines != nil {
		query.Set("lines", strconv.Itoa(*o.Lines))
	}
	if !o.Since.IsZero() {
		query.Set("since", o.Since.UTC().Format(time.RFC3339Nano))
	}
	return c.open(ctx, http.MethodGet, c.process(id, p, "/logs", query), nil)
}

// LogLines passes the output of a process to each, piece by piece. If it follows and the connection is lost, it
// reconnects and continues at the same byte, as Attach does.
func (c *Client) LogLines(ctx context.Context, id, p string, o LogOptions, each func(*api.LogLine) error) error {
	o.Format = "ndjson"
	at := [2]int64{}
	switch {
	case o.From != nil:
		at = *o.From
	case o.Follow && (o.Tail > 0 || o.Lines != nil || !o.Since.IsZero()): // an empty stream must not be sent from its beginning later
		state, err := c.Process(ctx, id, p, 0)
		if err != nil {
			return err
		}
		at = [2]int64{state.Output[0].Bytes, state.Output[1].Bytes}
	}
	var tries retries
	for {
		lost, began, err := c.logLines(ctx, id, p, o, &at, each)
		if err == nil && o.Follow && !c.logsOver(ctx, id, p, o.Stream, at) {
			lost, err = true, ErrStreamEnded // boxd has ended, not the process
		}
		if err == nil || !lost || !o.Follow {
			return err
		}
		if began {
			tries, o.From, o.Tail, o.Lines, o.Since = retries{}, &at, 0, nil, time.Time{}
		}
		if err := tries.wait(ctx, &c.pace, err); err != nil {
			return err
		}
	}
}

// logsOver reports whether a process has ended and its output, or only that of a stream, was read to the end.
func (c *Client) logsOver(ctx context.Context, id, p, stream string, at [2]int64) bool {
	state, err := c.Process(ctx, id, p, 0)
	if err != nil {
		return !retryable(err)
	}
	return state.State == "ended" && (stream == "stderr" || at[0] >= state.Output[0].Bytes) && (stream == "stdout" || at[1] >= state.Output[1].Bytes)
}

// logLines uses one connection. It advances at; lost says that another connection may continue.
func (c *Client) logLines(ctx context.Context, id, p string, o LogOptions, at *[2]int64, each func(*api.LogLine) error) (lost, began bool, err error) {
	body, err := c.Logs(ctx, id, p, o)
	if err != nil {
		return retryable(err), false, err
	}
	defer body.Close()
	for d := json.NewDecoder(body); ; began = true {
		var line api.LogLine
		err := d.Decode(&line)
		switch {
		case errors.Is(err, io.EOF):
			return false, began, nil
		case ctx.Err() != nil:
			return false, began, ctx.Err()
		case err != nil:
			return true, began, fmt.Errorf("%w: %w", ErrStreamEnded, err)
		}
		data, err := logData(&line)
		if err != nil {
			return false, began, err
		}
		stream := 0
		if line.Stream == "stderr" {
			stream = 1
		}
		line.Data, line.Base64 = string(data), false
		if err := each(&line); err != nil {
			return false, began, err
		}
		at[stream] = line.Offset + int64(len(data)) + line.Gap
	}
}

// logData returns the output in a line.
func logData(line *api.LogLine) ([]byte, error) {
	if !line.Base64 {
		return []byte(line.Data), nil
	}
	data, err := base64.StdEncoding.DecodeString(line.Data)
	if err != nil {
		return nil, fmt.Errorf("logs: %w", err)
	}
	return data, nil
}

// process returns the route of a process.
func (c *Client) process(id, p, rest string, query url.Values) target {
	if p == "" {
		return target{err: ErrNoName}
	}
	return c.session(id, "/processes/"+segment(p)+rest, query)
}
