// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/relay/e2b/protocol"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
)

// onePipe is a listener for one connection.
type onePipe struct {
	conns chan net.Conn
	ended chan struct{}
}

func (l *onePipe) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

func (l *onePipe) Close() error { close(l.ended); return nil }

func (l *onePipe) Addr() net.Addr { return &net.UnixAddr{} }

// A client that announces a body and does not send it gets its answer, and holds no resources of boxd, authenticated or not.
func TestABodyThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]string{
		"no key":          "POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
		"a foreign host":  "POST /v2/sandboxes HTTP/1.1\r\nHost: example.com\r\nContent-Length: 1000\r\n\r\n{",
		"without an end":  "POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
		"no such sandbox": "POST /process.Process/List HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: i../\r\nContent-Length: 1000\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &Server{callers: conns.New(1, conns.All)}
				s.index = newIndex(s)
				s.cfg.Log = slog.New(slog.DiscardHandler)
				ln := &onePipe{make(chan net.Conn, 1), make(chan struct{})}
				front := &http.Server{Handler: s, ReadHeaderTimeout: time.Second}
				done := make(chan error, 1)
				go func() { done <- front.Serve(ln) }()
				near, far := net.Pipe()
				ln.conns <- far
				start := time.Now()
				go io.WriteString(near, request)
				resp, err := http.ReadResponse(bufio.NewReader(near), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if late := time.Since(start); late > 2*bodyTimeout || resp.StatusCode < 400 {
					t.Errorf("%d after %v", resp.StatusCode, late)
				}
				near.Close()
				front.Close()
				<-done
			})
		})
	}
}

// A body sent in small pieces has a total time limit too, unless it may be a long stream.
func TestASlowBodyHasAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		ended := make(chan time.Duration, 1)
		start := time.Now()
		ln := &onePipe{make(chan net.Conn, 1), make(chan struct{})}
		front := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s := &Server{}
			callers := conns.New(1, conns.All)
			limits, release := callers.Share("a")
			defer release()
			body, end, err := s.bounded(w, r, &sandbox{limits: limits}, procedure{})
			if err != nil {
				t.Error(err)
				return
			}
			defer end()
			_, err = io.ReadAll(body)
			if err == nil {
				t.Error("no error for a body that comes too slowly")
			}
			ended <- time.Since(start)
		})}
		done := make(chan error, 1)
		go func() { done <- front.Serve(ln) }()
		ln.conns <- far
		sent := make(chan error, 1)
		go func() {
			_, err := io.WriteString(near, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
			for err == nil {
				<-time.After(bodyTimeout / 3) // takes no time in a bubble
				_, err = near.Write([]byte("x"))
			}
			sent <- err
		}()
		if late := <-ended; late > 2*bodyTimeout {
			t.Errorf("it was read for %v", late)
		}
		near.Close()
		<-sent
		front.Close()
		<-done
	})
}

// The memory reserved for a message is its possible size after decompression, not the number of bytes sent.
func TestAPackedMessageTakesItsRoom(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		header string
		what   procedure
		length int64
		free   bool // room for another one of half the total
	}{
		"plain":       {"", procedure{}, 100, true},
		"packed":      {"Content-Encoding", procedure{}, 100, false},
		"packed too":  {"Connect-Content-Encoding", procedure{streams: true}, 100, false},
		"of any size": {"", procedure{}, -1, false},
		"for long":    {"", procedure{input: true}, -1, true},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.ContentLength = tc.length
		if tc.header != "" {
			r.Header.Set(tc.header, "gzip")
		}
		synctest.Test(t, func(t *testing.T) { // while it waits for room, no time passes
			limits, release := conns.New(1, conns.All).Share("a")
			held := []func(){release}
			full := false
			for range 9 {
				_, end, err := (&Server{}).bounded(httptest.NewRecorder(), r.WithContext(t.Context()), &sandbox{limits: limits}, tc.what)
				if err != nil {
					full = true
					break
				}
				held = append(held, end)
			}
			if full == tc.free {
				t.Errorf("%s: %d at a time", name, len(held)-1)
			}
			for _, end := range held {
				end()
			}
		})
	}
}

// Names made up by clients appear in no metrics and no records.
func TestThereIsNoRPCButThoseThereAre(t *testing.T) {
	t.Parallel()
	all := procedures()
	if len(all) != 8+9+3 {
		t.Errorf("there are %d, want 8 + 9 + 3", len(all))
	}
	for path, want := range map[string]procedure{
		protocol.ProcessStartProcedure:            {streams: true},
		protocol.ProcessListProcedure:             {reads: true},
		protocol.ProcessConnectProcedure:          {reads: true, streams: true},
		protocol.ProcessStreamInputProcedure:      {input: true},
		protocol.FilesystemRemoveProcedure:        {},
		protocol.FilesystemWatchDirProcedure:      {reads: true, streams: true},
		protocol.ExecutionServiceExecuteProcedure: {streams: true},
	} {
		if got, ok := all[path]; !ok || got != want {
			t.Errorf("%s: got %+v, want ok == true and got == %+v", path, got, want)
		}
	}
}

// A watcher that is not polled stores a bounded amount of file names.
func TestAWatcherKeepsLittle(t *testing.T) {
	t.Parallel()
	w := &watcher{}
	name := []byte(strings.Repeat("x", 4000))
	var err error
	n := 0
	for ; err == nil && n < maxEvents+1; n++ {
		err = w.take("/", &files.Event{What: files.Created, Path: name, Entry: &files.Entry{Path: name, Type: files.TypeFile}}, true)
	}
	if err == nil || n*8000 > 2*maxKept {
		t.Errorf("%v after %d events", err, n)
	}
}

// A watcher that is no longer polled is removed, also one that has ended before.
func TestAWatcherThatNobodyAsksIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &watches{}
		ctx, cancel := context.WithCancel(t.Context())
		id, _, err := w.begin(nil, cancel)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(watcherLife - time.Second) // takes no time in a bubble
		if _, err := w.find(nil, id); err != nil {
			t.Fatal(err)
		}
		<-time.After(watcherLife + time.Second) // takes no time in a bubble
		synctest.Wait()
		if len(w.all) != 0 || ctx.Err() == nil {
			t.Errorf("%d are left, %v", len(w.all), ctx.Err())
		}
	})
}

// Whatever a program in a sandbox stores in a file's metadata can be encoded.
func TestEveryFileEntryCanBeEncoded(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]*files.Entry{
		"late":  {Type: files.TypeFile, Time: time.Unix(1<<60, 0)},
		"early": {Type: files.TypeFile, Time: time.Unix(-1<<60, 0)},
		"bytes": {Type: files.TypeLink, Path: []byte("\xff"), Target: []byte("\xfe"), Owner: &files.Owner{User: "\xff", Group: "\xff"}, Xattrs: map[string][]byte{metadataPrefix + "\xff": {0xff}}},
	} {
		m := entry("/a/\xff", e)
		if _, err := proto.Marshal(m); err != nil || m.ModifiedTime.CheckValid() != nil {
			t.Errorf("%s: err = %v, m.ModifiedTime.CheckValid() = %v, want no error and m.ModifiedTime.CheckValid() == nil",
				name, err, m.ModifiedTime.CheckValid())
		}
	}
}

// A new timeout counts from now, whatever the age of the sandbox and however the clock jumps.
func TestANewSandboxTimeoutCountsFromNow(t *testing.T) {
	t.Parallel()
	for _, age := range []time.Duration{math.MinInt64, -time.Hour, 0, time.Hour} {
		for _, seconds := range []int64{0, 1, maxTimeout} {
			if d, err := lifetime(age, seconds); err != nil || time.Duration(*d) <= 0 || time.Duration(*d) < time.Duration(seconds)*time.Second {
				t.Errorf("%v old, %d s: d = %v, err = %v, want no error and time.Duration(*d) > 0 and time.Duration(*d) >= time.Duration(seconds) * time.Second",
					age, seconds, d, err)
			}
		}
	}
	for _, seconds := range []int64{-1, math.MinInt64, maxTimeout + 1, math.MaxInt64} {
		if d, err := lifetime(0, seconds); err == nil {
			t.Errorf("%d s: d = %v, want an error", seconds, d)
		}
	}
}

// TLS is recognized however the listener's address is written.
func TestTheListenerOfTLSIsKnown(t *testing.T) {
	t.Parallel()
	for address, others := range map[string]string{"0.0.0.0:0": "127.0.0.1:0", "127.0.0.2:0": "127.0.0.1:0", "[::1]:0": "127.0.0.1:0"} {
		ln, err := net.Listen("tcp", address)
		if err != nil {
			boxtest.Missing(t, "the address "+address+" on the loopback")
		}
		defer ln.Close()
		_, port, _ := net.SplitHostPort(ln.Addr().String())
		host, _, _ := net.SplitHostPort(address)
		c := &Settings{TLSListen: net.JoinHostPort(host, port)}
		other, err := net.Listen("tcp", others)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if !c.ByTLS(ln) || c.ByTLS(other) {
			t.Errorf("%s: %v, and %v is %v, want c.ByTLS(ln) and not c.ByTLS(other)",
				c.TLSListen, c.ByTLS(ln), other.Addr(), c.ByTLS(other))
		}
	}
	for _, bad := range []string{"127.0.0.1:5443", "[::ffff:127.0.0.1]:5443", "127.0.0.2:https", "127.0.0.2:0", "localhost:1", "127.0.0.2"} {
		c := &Settings{TLSListen: bad, Certificate: "/a", Key: "/b"}
		if c.validateTLS() == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

// sign makes a signature as the SDKs do.
func sign(path, operation, user, token, expires string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expires != "" {
		text += ":" + expires
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// A signature is valid for what was signed, and for nothing else.
func FuzzSignedAddress(f *testing.F) {
	f.Add("GET", "/files", "a b", "user", "17", "x")
	f.Add("POST", "/upload", "", "", "", "")
	f.Add("HEAD", "/download/a/../b", "/a", "root", "-1", "v1_")
	f.Add("PUT", "/files", "a:read:", ":", "9223372036854775808", "=")
	f.Fuzz(func(t *testing.T, method, at, path, user, expires, other string) {
		const token = "secret"
		r := &http.Request{Method: method, URL: &url.URL{Path: at}}
		q := url.Values{parameterPath: {path}, parameterUser: {user}, parameterExpires: {expires}, parameterSignature: {other}}
		r.URL.RawQuery = q.Encode()
		a := signedAddress(r)
		if a == nil {
			return
		}
		if a.fits(token) {
			t.Fatalf("%q fits", other)
		}
		operation := "read"
		if method == http.MethodPost {
			operation = "write"
		}
		if rest, ok := strings.CutPrefix(at, wire.DownloadPath); ok {
			path = "/" + rest
		}
		q.Set(parameterSignature, sign(path, operation, user, token, expires))
		r.URL.RawQuery = q.Encode()
		if a = signedAddress(r); a != nil && !a.fits(token) {
			t.Errorf("%+v does not fit", a)
		}
		if a != nil && a.fits(token+"x") {
			t.Errorf("%+v fits another token", a)
		}
		if a != nil && !a.expired(time.Unix(math.MaxInt64, 0)) && expires != "" {
			t.Errorf("%q never ends", expires)
		}
	})
}

// Every metadata query yields a filter or an error.
func FuzzMetadataFilter(f *testing.F) {
	for _, text := range []string{"a%2520b=c%2526d", "a=b&a=c", "%", "a=%25zz", "&&==;", "\x00=\xff", strings.Repeat("a=b&", 100)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		pairs, err := unescaped(text)
		if (pairs == nil) == (err == nil) {
			t.Fatalf("pairs = %v, err = %v, want (pairs == nil) != (err == nil)", pairs, err)
		}
		l := &listedSandbox{Metadata: pairs}
		if err == nil && !(&filter{metadata: pairs}).has(l) {
			t.Errorf("%v is not like itself", pairs)
		}
		twice := url.Values{}
		for k, v := range pairs {
			twice.Set(url.QueryEscape(k), url.QueryEscape(v))
		}
		if again, err := unescaped(twice.Encode()); err != nil || !maps.Equal(again, pairs) {
			t.Errorf("%v becomes %v, %v", pairs, again, err)
		}
	})
}

// A request is for the control plane, for a sandbox with a possible id, or for nothing.
func FuzzRoute(f *testing.F) {
	f.Add("8000-i123.localhost:5420", "/", "", "")
	f.Add("localhost", "/files", "i123", "49983")
	f.Add("[::1]:1", "/execute", "", "")
	f.Add("127.0.0.1.example.com", "/health", "../x", "-1")
	f.Add("00080-a.localhost", "/sandboxagent.Process/Start", "A", "65536")
	f.Add("8000-a.b.localhost", "//contexts/", "i", "+8")
	f.Add("8000-a.LOCALHOST.", "/upload", "i\n", "8 ")
	f.Fuzz(func(t *testing.T, host, path, id, port string) {
		s := &Server{}
		r := &http.Request{Method: http.MethodPost, Host: host, URL: &url.URL{Path: path}, Header: http.Header{}}
		r.Header.Set(wire.HeaderSandbox, id)
		r.Header.Set(wire.HeaderPort, port)
		to, err := s.route(r)
		name, _, splits := net.SplitHostPort(host)
		if splits != nil {
			name = host
		}
		local := strings.EqualFold(name, "localhost") || net.ParseIP(strings.Trim(name, "[]")) != nil && net.ParseIP(strings.Trim(name, "[]")).IsLoopback()
		switch {
		case err != nil:
		case !to.Host && !local:
			t.Errorf("the host name %q counts as this host", host)
		case to.Host && !strings.HasSuffix(strings.ToLower(name), ".localhost"):
			t.Errorf("the host name %q counts as that of a sandbox", host)
		case to.Control && (to.Sandbox != "" || to.Port != 0 || id != "" || port != ""):
			t.Errorf(`%q, %q, %q: to = %+v, want to.Control == false or to.Sandbox == "" and to.Port == 0 and id == "" and port == ""`,
				host, id, port, to)
		case !to.Control && (to.Port < 1 || to.Port > 65535):
			t.Errorf("to = %+v, want to.Control == true or to.Port >= 1 and to.Port <= 65535", to)
		case to.Sandbox != "" && strings.Trim(to.Sandbox, "abcdefghijklmnopqrstuvwxyz0123456789") != "":
			t.Errorf(`to = %+v, want to.Sandbox == "" or strings.Trim(to.Sandbox, "abcdefghijklmnopqrstuvwxyz0123456789") == ""`,
				to)
		}
	})
}

// A range of a file is within the file.
func FuzzRange(f *testing.F) {
	for _, text := range []string{"bytes=0-", "bytes=-5", "bytes=5-3", "bytes=9223372036854775807-", "bytes=-9223372036854775808", "bytes=0-0,2-3", "bytes=--1", "bytes= 1-2", "bytes=+1-+2"} {
		f.Add(text, int64(10))
	}
	f.Add("bytes=-1", int64(0))
	f.Add("bytes=0-9223372036854775807", int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, text string, size int64) {
		if size < 0 {
			return
		}
		r := &http.Request{Header: http.Header{"Range": {text}}}
		part, err := ranged(r, &files.Entry{Size: size})
		if part != nil && (err != nil || part.from < 0 || part.length < 1 || part.from > size-part.length) {
			t.Errorf("%q of %d: part = %+v, err = %v, want part == nil or no error and part.from >= 0 and part.length >= 1 and part.from <= size - part.length",
				text, size, part, err)
		}
	})
}

// The user that a request names is what it has encoded, up to the first colon.
func FuzzBasicUser(f *testing.F) {
	for _, text := range []string{"Basic dXNlcjo=", "Basic cm9vdDp4", "Basic ", "basic dXNlcjo=", "Bearer root", "Basic dXNlcg==\x00", "Basic !", "Basic Og=="} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, err := basicUser(http.Header{"Authorization": {text}})
		encoded, basic := strings.CutPrefix(text, "Basic ")
		pair, bad := base64.StdEncoding.DecodeString(encoded)
		if (err != nil) != (basic && bad != nil) || err == nil && basic && name != strings.Split(string(pair), ":")[0] || !basic && name != "" {
			t.Errorf("%q is %q, %v", text, name, err)
		}
	})
}

// endless is a form whose part has an endless header.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	if e.read == 0 {
		e.read = copy(p, "--b\r\nX: ")
		return e.read, nil
	}
	for i := range p {
		p[i] = 'x'
	}
	e.read += len(p)
	return len(p), nil
}

// The header of a part is limited, and its content is not.
func TestTheHeaderOfAPartIsBounded(t *testing.T) {
	t.Parallel()
	from := &endless{}
	h := &headReader{Reader: from}
	if _, err := h.next(multipart.NewReader(h, "b")); err == nil || from.read > 2*maxPartHeader {
		t.Errorf("%v after %d bytes", err, from.read)
	}
	const part = "--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n"
	h = &headReader{Reader: strings.NewReader(part + strings.Repeat("x", 3*maxPartHeader) + "\r\n" + part + "y\r\n--b--\r\n")}
	form := multipart.NewReader(h, "b")
	for n := range 2 {
		if _, err := h.next(form); err != nil {
			t.Errorf("part %d: %v", n, err)
		}
	}
	if _, err := h.next(form); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
