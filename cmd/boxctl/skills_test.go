// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A skill is previewed before it is trusted. Nothing in it may control the terminal during that: neither its name, which may be
// an invalid one, nor its description.
func TestSkillsDoNotSpeakToTheTerminal(t *testing.T) {
	t.Parallel()
	const evil, nel = `\u001b]0;gone\u0007`, `\u009b31m`
	skill := `{"name":"n` + evil + `","description":"d` + evil + `","license":"l` + evil + `","compatibility":"c` + nel + `","origin":"o` + evil +
		`","advice":["a` + evil + `"],"instructions":"# Title\r\n\tof it` + evil + `\n"}`
	for _, test := range []struct {
		args        []string
		answer, has string
	}{
		{[]string{"preview", "https://example.org/x.zip"}, `{"candidates":[{"path":"p` + evil + `","skill":` + skill + `,"problems":[{"key":"name","text":"t` + evil + `"}]}]}`, "wrong: name: t"},
		{[]string{"show", "n"}, skill, "# Title\n\tof it"},
		{[]string{"ls"}, `{"skills":[` + skill + `]}`, "DESCRIPTION"},
		{[]string{"files", "n"}, `{"entries":[{"type":"file","path":"f` + evil + `"}]}`, "file"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, test.answer) }))
		var out bytes.Buffer
		cmd := (&app{stdin: strings.NewReader(""), stdout: &out, stderr: &out, socket: server.URL}).skillCommand()
		cmd.SetArgs(test.args)
		err := cmd.ExecuteContext(t.Context())
		server.Close()
		if text := out.String(); !strings.Contains(text, test.has) || strings.ContainsAny(text, "\x1b\x07\u009b\r") {
			t.Errorf(`%q (%v) prints %q, want text containing %q and not strings.ContainsAny(text, "\x1b\x07\u009b\r")`,
				test.args, err, text, test.has)
		}
	}
}
