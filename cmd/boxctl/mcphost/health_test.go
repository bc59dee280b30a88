// SPDX-License-Identifier: Apache-2.0

package mcphost

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

// What a server does between two ticks, one letter each: "." nothing, "a" answers the ping, "s" sends something else, "r" its
// client calls a tool, "d" that is answered, "c" that is canceled.
func TestAHungMCPServerIsDetected(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, does string
		silent     bool
		pings      int
		reported   []string
	}{
		{"it answers", "aaaaaa", false, 6, []string{"ok"}},
		{"never", "...", true, 3, []string{"no answer to 1 of 3 pings", "no answer to 2 of 3 pings", "no answer to 3 of 3 pings"}},
		{"late", "a..a..a", false, 7, []string{"ok", "no answer to 1 of 3 pings", "no answer to 2 of 3 pings", "ok", "no answer to 1 of 3 pings", "no answer to 2 of 3 pings", "ok"}},
		{"another word is one too", "..s..s", false, 6, []string{"no answer to 1 of 3 pings", "no answer to 2 of 3 pings", "ok", "no answer to 1 of 3 pings", "no answer to 2 of 3 pings", "ok"}},
		{"who works is left alone", "r.........da", false, 2, []string{"ok"}},
		{"a call that was cancelled is no work", "rc...", true, 4, []string{"no answer to 1 of 3 pings", "no answer to 2 of 3 pings", "no answer to 3 of 3 pings"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWatch(func() {})
			w.message([]byte(`{"id":1,"method":"initialize"}`))
			sendLine(w, []byte(`{"id":1,"result":{}}`))
			w.activity()
			ticks, pings := make(chan time.Time), 0
			var told []string
			done := make(chan bool, 1)
			go func() {
				done <- pollHealth(t.Context(), ticks, w, func(int) bool { pings++; return true }, func(how string) {
					if len(told) == 0 || told[len(told)-1] != how {
						told = append(told, how)
					}
				})
			}()
			for _, does := range tc.does {
				ticks <- time.Time{}
				synctest.Wait()
				switch does {
				case 'a':
					if !sendLine(w, fmt.Appendf(nil, `{"id":"%s%d","result":{}}`, pingID, pings)) {
						t.Errorf("%s: the client received the answer to a ping of boxctl", tc.name)
					}
				case 's':
					sendLine(w, []byte(`{"method":"notifications/message"}`))
				case 'r':
					w.message([]byte(`{"id":7,"method":"tools/call","params":{"name":"x"}}`))
				case 'd':
					sendLine(w, []byte(`{"id":7,"result":{}}`))
				case 'c':
					w.message([]byte(`{"method":"notifications/cancelled","params":{"requestId":7}}`))
				}
			}
			select {
			case ticks <- time.Time{}: // the last one is evaluated
				synctest.Wait()
			case silent := <-done:
				done <- silent
			}
			silent := false
			select {
			case silent = <-done:
			default:
			}
			if silent != tc.silent || pings < tc.pings || !slices.Equal(told, tc.reported) {
				t.Errorf("%s: silent %v after %d pings, %q; want %v, %d, %q", tc.name, silent, pings, told, tc.silent, tc.pings, tc.reported)
			}
		})
	}
}

// A ping is never sent in the middle of a client's message, and none after its EOF.
func TestPingsAreBetweenMessages(t *testing.T) {
	t.Parallel()
	client, says := io.Pipe()
	m, in := newServerInput(client)
	r := bufio.NewReader(in)
	next := func(want string) {
		t.Helper()
		if got, err := r.ReadString('\n'); err != nil || got != want+"\n" {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
	}
	first := make(chan bool, 1)
	go func() { first <- m.ping(1) }()
	next(`{"jsonrpc":"2.0","id":"boxd-health-1","method":"ping"}`)
	if !<-first {
		t.Error("no ping was sent to a client that waits")
	}
	go func() { fmt.Fprint(says, "begun") }()
	half := make([]byte, 5)
	if _, err := io.ReadFull(r, half); err != nil {
		t.Fatal(err)
	}
	if m.ping(2) {
		t.Error("a ping was sent in the middle of a message")
	}
	go func() { fmt.Fprintln(says, " and ended"); says.Close() }()
	next(" and ended")
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("the end of the client is %v, want io.EOF", err)
	}
	if m.ping(3) {
		t.Error("a ping was sent after the end of the connection")
	}
}

func TestAnswersToPingsAloneAreKept(t *testing.T) {
	t.Parallel()
	for line, private := range map[string]bool{
		`{"jsonrpc":"2.0","id":"boxd-health-1","result":{}}`:                  true,
		`{"id":"boxd-health-12","error":{"code":-32601,"message":"no ping"}}`: true,
		`{"id":"boxd-health-1","method":"sampling/createMessage"}`:            false, // a request, whatever its id
		`{"id":"other","result":{}}`:                                          false,
		`{"id":1,"result":{}}`:                                                false,
		`{"method":"notifications/progress"}`:                                 false,
		`no JSON`:                                                             false,
		``:                                                                    false,
	} {
		if got := sendLine(newWatch(nil), []byte(line)); got != private {
			t.Errorf("%s: passed on: %v", line, got)
		}
	}
}

func TestTheLastLineIsSanitizedAndTruncated(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                             "",
		"one":                          "one",
		"one\ntwo\n\n":                 "two",
		"\x1b[31mred\x1b[0m\r":         " [31mred [0m",
		"bad \xff bytes":               "bad ? bytes",
		strings.Repeat("ä", 300):       strings.Repeat("ä", 100),
		"x" + strings.Repeat("ä", 300): "x" + strings.Repeat("ä", 99),
	} {
		if got := LastLine(text); got != want || !utf8.ValidString(got) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// A server that does not exit at EOF is ended, once its client has had its answers.
func TestAnMCPServerThatIgnoresEOFIsEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatch(nil)
		w.message([]byte(`{"id":7,"method":"tools/call","params":{"name":"x"}}`))
		client, says := io.Pipe()
		m, in := newServerInput(client)
		defer in.Close()
		left := make(chan bool, 1)
		go func() { left <- m.awaitAnswers(t.Context(), w) }()
		time.Sleep(time.Hour) //nolint:forbidigo // in a bubble, where it takes no time
		says.Close()
		time.Sleep(time.Hour) //nolint:forbidigo // as above
		select {
		case <-left:
			t.Fatal("the server was ended in the middle of a call, or while its client was connected")
		default:
		}
		sendLine(w, []byte(`{"id":7,"result":{}}`))
		time.Sleep(exitGrace + time.Second) //nolint:forbidigo // as above
		select {
		case gone := <-left:
			if !gone {
				t.Error("the server was not ended")
			}
		default:
			t.Error("the server still runs after its client has gone")
		}
	})
}

// heard lets a server send a line, and reports whether it was meant for boxctl alone.
func sendLine(w *watch, line []byte) bool {
	w.noteOutput()
	return w.message(line)
}

// Output of a server is forwarded in any pieces and of any length, except answers to our pings; an answered request is no longer
// pending, however long the answer is.
func TestALineOfAnyLengthArrives(t *testing.T) {
	t.Parallel()
	long := `{"jsonrpc":"2.0","id":7,"result":"` + strings.Repeat("x", 3*maxLine) + `"}` + "\n"
	said := `{"id":"` + pingID + `1","result":{}}` + "\n" + long + `{"id":"` + pingID + `2","result":{}}` + "\n" + `{"method":"a"}` + "\n" + "half"
	want := long + `{"method":"a"}` + "\n" + "half"
	for _, size := range []int{1 << 20, 65536, 4099, len(said)} {
		w := newWatch(func() {})
		w.message([]byte(`{"id":7,"method":"tools/call","params":{"name":"n"}}`))
		var got bytes.Buffer
		out := &writer{Writer: &got, watch: w}
		for b := []byte(said); len(b) > 0; {
			n, err := out.Write(b[:min(size, len(b))])
			if err != nil {
				t.Fatal(err)
			}
			b = b[n:]
		}
		if err := out.flush(); err != nil || got.String() != want {
			t.Errorf("in pieces of %d: %d bytes of %d, %v", size, got.Len(), len(want), err)
		}
		if !w.answered() {
			t.Errorf("in pieces of %d bytes: the answer to the ping was not recognized", size)
		}
	}
}
