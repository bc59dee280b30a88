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
	"strings"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
)

// ErrNoName means that a call about a process was given the empty id, which no process has.
var ErrNoName = errors.New("the id of the process is empty")

// StartProcess makes a process, or returns the one of that id if it was asked for with the same request,
// running or ended; isNew tells which.
func (c *Client) StartProcess(ctx context.Context, id, p string, req *api.ProcessRequest) (state api.Process, isNew bool, err error) {
	path, err := c.processPath(id, p, "", nil)
	if err != nil {
		return state, false, err
	}
	code, err := c.do(ctx, http.MethodPut, path, req, &state)
	return state, code == http.StatusCreated, err
}

// Processes lists the processes of a session.
func (c *Client) Processes(ctx context.Context, id string) ([]api.Process, error) {
	path, err := c.path(id, "/processes")
	if err != nil {
		return nil, err
	}
	var list api.ProcessList
	_, err = c.do(ctx, http.MethodGet, path, nil, &list)
	return list.Processes, err
}

// Process describes a process: as soon as it has ended, but at the latest after wait.
func (c *Client) Process(ctx context.Context, id, p string, wait time.Duration) (state api.Process, err error) {
	query := url.Values{}
	if wait > 0 {
		query.Set("wait", wait.String())
	}
	return state, c.process(ctx, http.MethodGet, id, p, "", query, nil, &state)
}

// StopProcess asks a process to end as its request says, kills it if it does not, and returns when it has
// ended.
func (c *Client) StopProcess(ctx context.Context, id, p string) (state api.Process, err error) {
	return state, c.process(ctx, http.MethodPost, id, p, "/stop", nil, nil, &state)
}

// DeleteProcess ends a process and forgets it.
func (c *Client) DeleteProcess(ctx context.Context, id, p string) error {
	return c.process(ctx, http.MethodDelete, id, p, "", nil, nil, nil)
}

// SignalProcess sends a signal such as SIGHUP to the process group of a process.
func (c *Client) SignalProcess(ctx context.Context, id, p, signal string) error {
	return c.process(ctx, http.MethodPost, id, p, "/signal", nil, api.SignalRequest{Signal: signal}, nil)
}

// ResizeProcess gives the terminal of a process another size.
func (c *Client) ResizeProcess(ctx context.Context, id, p string, size api.Terminal) error {
	return c.process(ctx, http.MethodPost, id, p, "/resize", nil, size, nil)
}

// Renew begins the lease of a process anew.
func (c *Client) Renew(ctx context.Context, id, p string) (state api.Process, err error) {
	return state, c.process(ctx, http.MethodPost, id, p, "/renew", nil, nil, &state)
}

// LogOptions say what of the output of a process is wanted. Without any it is all that is kept.
type LogOptions struct {
	Follow bool      // go on until the process has ended
	Stream string    // only "stdout" or "stderr"
	From   *[2]int64 // begin at these bytes of stdout and stderr
	Tail   int64     // only so many bytes of the end of each stream
	Lines  *int      // only so many lines of the end
	Format string    // "text" (the default), "ndjson" (of api.LogLine) or "sse"
}

// Logs returns the output of a process.
func (c *Client) Logs(ctx context.Context, id, p string, o LogOptions) (io.ReadCloser, error) {
	query := url.Values{}
	if o.Follow {
		query.Set("follow", "true")
	}
	if o.From != nil {
		query.Set("stdout", strconv.FormatInt(o.From[0], 10))
		query.Set("stderr", strconv.FormatInt(o.From[1], 10))
	}
	if o.Tail > 0 {
		query.Set("tail", strconv.FormatInt(o.Tail, 10))
	}
	if o.Lines != nil {
		query.Set("lines", strconv.Itoa(*o.Lines))
	}
	if o.Stream != "" {
		query.Set("stream", o.Stream)
	}
	if o.Format != "" {
		query.Set("format", o.Format)
	}
	path, err := c.processPath(id, p, "/logs", query)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://boxd"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("logs: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, simplify(err)
	}
	if resp.StatusCode < http.StatusMultipleChoices {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return nil, problemOf(resp, data)
}

// LogLines hands the output of a process to each, piece by piece. When it follows and the connection is
// lost it goes on with a new one at the byte it has come to, as Attach does.
func (c *Client) LogLines(ctx context.Context, id, p string, o LogOptions, each func(*api.LogLine) error) error {
	o.Format = "ndjson"
	at := [2]int64{}
	switch {
	case o.From != nil:
		at = *o.From
	case o.Follow && (o.Tail > 0 || o.Lines != nil): // a stream may have nothing in it, and is not to come whole later
		state, err := c.Process(ctx, id, p, 0)
		if err != nil {
			return err
		}
		at = [2]int64{state.Output[0].Bytes, state.Output[1].Bytes}
	}
	var tries retries
	for {
		lost, began, err := c.logLines(ctx, id, p, o, &at, each)
		if err == nil && o.Follow && !c.logsOver(ctx, id, p, at) {
			lost, err = true, ErrStreamEnded // boxd has ended, not the process
		}
		if err == nil || !lost || !o.Follow {
			return err
		}
		if began {
			tries, o.From, o.Tail, o.Lines = retries{}, &at, 0, nil
		}
		if err := tries.wait(ctx, &c.pace, err); err != nil {
			return err
		}
	}
}

// logsOver reports whether a process has ended and its output has been read to the end.
func (c *Client) logsOver(ctx context.Context, id, p string, at [2]int64) bool {
	state, err := c.Process(ctx, id, p, 0)
	if err != nil {
		return !worthRetrying(err)
	}
	return state.State == "ended" && at[0] >= state.Output[0].Bytes && at[1] >= state.Output[1].Bytes
}

// logLines is one connection of LogLines. It counts in at; lost says that another may go on.
func (c *Client) logLines(ctx context.Context, id, p string, o LogOptions, at *[2]int64, each func(*api.LogLine) error) (lost, began bool, err error) {
	body, err := c.Logs(ctx, id, p, o)
	if err != nil {
		return worthRetrying(err), false, err
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

// logData is what was written.
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

// process makes a request about a process.
func (c *Client) process(ctx context.Context, method, id, p, rest string, query url.Values, in, out any) error {
	path, err := c.processPath(id, p, rest, query)
	if err == nil {
		_, err = c.do(ctx, method, path, in, out)
	}
	return err
}

// processPath is that of a process's route.
func (c *Client) processPath(id, p, rest string, query url.Values) (string, error) {
	if p == "" {
		return "", ErrNoName
	}
	path, err := c.path(id, "/processes/"+segment(p)+rest)
	if len(query) > 0 {
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		path += separator + query.Encode()
	}
	return path, err
}
