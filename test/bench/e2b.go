// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// e2b is a client of the E2B protocol over plain HTTP, as its SDKs are.
type e2b struct {
	address, key string
	http         http.Client
}

// e2bSandbox is a created sandbox.
type e2bSandbox struct {
	ID    string `json:"sandboxID"`
	Token string `json:"envdAccessToken"`
}

// request sends a request and returns the answer, up to the text until if that is set.
func (e *e2b) request(ctx context.Context, method, path, body, until string, header ...string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+e.address+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	for ; len(header) > 1; header = header[2:] {
		req.Header.Set(header[0], header[1])
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var all bytes.Buffer
	part := make([]byte, 32<<10)
	for err == nil && (until == "" || !strings.Contains(all.String(), until)) {
		var n int
		n, err = resp.Body.Read(part)
		all.Write(part[:n])
	}
	if resp.StatusCode >= http.StatusBadRequest || until != "" && !strings.Contains(all.String(), until) {
		return "", fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode, all.String())
	}
	if until != "" { // the rest belongs to the answer, but not to the measured time
		_, err = io.Copy(io.Discard, resp.Body)
		return all.String(), err
	}
	return all.String(), nil
}

func (e *e2b) create(ctx context.Context) (*e2bSandbox, error) {
	text, err := e.request(ctx, "POST", "/v2/sandboxes", `{"templateID":"base"}`, "", "X-Api-Key", e.key)
	if err != nil {
		return nil, err
	}
	sb := &e2bSandbox{}
	return sb, json.Unmarshal([]byte(text), sb)
}

func (e *e2b) kill(ctx context.Context, sb *e2bSandbox) error {
	_, err := e.request(ctx, "DELETE", "/sandboxes/"+sb.ID, "", "", "X-Api-Key", e.key)
	return err
}

// run starts a program as commands.run does, and waits for its end.
func (e *e2b) run(ctx context.Context, sb *e2bSandbox) error {
	const message = `{"process":{"cmd":"/bin/true"},"stdin":false}`
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	_, err := e.request(ctx, "POST", "/process.Process/Start", string(frame), `"exit status 0"`, "Content-Type", "application/connect+json", "E2b-Sandbox-Id", sb.ID, "X-Access-Token", sb.Token)
	return err
}

// code runs code as runCode does.
func (e *e2b) code(ctx context.Context, sb *e2bSandbox) error {
	_, err := e.request(ctx, "POST", "/execute", `{"code":"1+1"}`, `"end_of_execution"`, "Content-Type", "application/json", "E2b-Sandbox-Id", sb.ID, "E2b-Sandbox-Port", "49999", "X-Access-Token", sb.Token)
	return err
}

// e2bCases measures the most frequent calls of E2B clients.
func (b *bench) e2bCases(ctx context.Context) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // a free port
	if err != nil {
		return err
	}
	e := &e2b{address: ln.Addr().String(), key: "boxd_" + rand.Text() + rand.Text()}
	if err := ln.Close(); err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(e.key))
	tokens := filepath.Join(b.dir, "tokens")
	if err := os.WriteFile(tokens, fmt.Appendf(nil, "[[token]]\nname = \"bench\"\nsha256 = %q\nprincipal = \"bench\"\n", hex.EncodeToString(sum[:])), 0o600); err != nil {
		return err
	}
	if _, err := b.startDaemon(ctx, "e", 1, fmt.Sprintf("[access]\ntokens = %q\n[principals.bench]\nrole = \"user\"\n[profiles.e2b]\nnetwork = \"off\"\nwarm = 4\n[e2b]\npython_kernel = \"own\"\nlisten = %q\n", tokens, e.address)); err != nil {
		return err
	}
	sb, err := e.create(ctx)
	if err != nil {
		return err
	}
	if err := e.code(ctx, sb); err != nil { // from now on its context is running
		return err
	}
	b.add("E2B: create + first output, boxes ahead", func() (time.Duration, error) {
		start := time.Now()
		one, err := e.create(ctx)
		if err != nil {
			return 0, err
		}
		err = e.run(ctx, one)
		elapsed := time.Since(start)
		return elapsed, errors.Join(err, e.kill(ctx, one))
	})
	b.add("E2B: kill", func() (time.Duration, error) {
		one, err := e.create(ctx)
		if err != nil {
			return 0, err
		}
		if err := e.run(ctx, one); err != nil {
			return 0, err
		}
		return timed(func() error { return e.kill(ctx, one) })()
	})
	b.add("E2B: a command in a live sandbox", timed(func() error { return e.run(ctx, sb) }))
	b.add("E2B: runCode(\"1+1\") in a live context", timed(func() error { return e.code(ctx, sb) }))
	return nil
}
