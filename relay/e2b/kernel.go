// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	_ "embed" // the kernels
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
)

//go:embed kernels/python.py
var pythonKernel string

//go:embed kernels/javascript.cjs
var javaScriptKernel string

//go:embed kernels/bash.sh
var bashKernel string

// kernel is how code of a language is run: by a program in the box that keeps the state of the code between executions. It takes
// requests from standard input, one a line, and is told by SIGINT to end the execution that runs.
type kernel struct {
	argv             []string // up to the nonce
	more             []string // after it
	encode           func(*kernelRequest) ([]byte, error)
	needs            string // the program of the box without which there is none
	interruptRequest bool   // an interrupt is a request too, for the signal does not reach it
}

// kernelVersion is that of the language between boxd and kernels. A kernel that an earlier boxd has started in another is replaced.
const kernelVersion = "1"

// kernelRequest is what a kernel is asked to do: to run code, or, with none, to answer when it has nothing else to do.
type kernelRequest struct {
	Op   string            `json:"op"` // run or sync
	ID   string            `json:"id"`
	Code string            `json:"code,omitempty"`
	Lang string            `json:"lang,omitempty"` // of a kernel that has several
	Env  map[string]string `json:"env,omitempty"`
}

// What a kernel is asked for.
const (
	opRun       = "run"
	opSync      = "sync"
	opInterrupt = "interrupt"

	anyExecution = "*" // the id of what is to be interrupted
)

// Names of languages.
const (
	languagePython     = "python"
	languageJavaScript = "javascript"
	languageTypeScript = "typescript"
	languageBash       = "bash"
)

// nodeScript gives the kernel of JavaScript descriptors of its own, which node cannot make.
const nodeScript = `exec 7<&0 8>&1 9>&2 </dev/null && exec node -e "$1" "$2"`

// kernels are the kernels there are, by language.
func kernels() map[string]kernel {
	return map[string]kernel{
		languagePython:     {argv: []string{"python3", "-c", pythonKernel}, encode: encodeJSON, needs: "python3"},
		languageJavaScript: {argv: []string{"/bin/sh", "-c", nodeScript, "node", javaScriptKernel}, encode: encodeJSON, needs: "node", interruptRequest: true},
		languageBash:       {argv: []string{"bash", "-c", bashKernel, "bash"}, more: []string{"0"}, encode: encodeShell, needs: "bash"},
	}
}

// languages are the names of those that code may be in.
func languages() []string {
	return []string{languageBash, languageJavaScript, languagePython, languageTypeScript}
}

// parseLanguage returns the name of a language of which somebody has written the name, and the one whose kernel runs it: code of
// TypeScript shares the state of JavaScript.
func parseLanguage(written string) (language, runs string, err error) {
	language = strings.ToLower(strings.TrimSpace(written))
	switch language {
	case "":
		language = languagePython
	case "py", "python3":
		language = languagePython
	case "js", "node", "nodejs":
		language = languageJavaScript
	case "ts", "deno":
		language = languageTypeScript
	case "sh", "shell":
		language = languageBash
	}
	runs = language
	if language == languageTypeScript {
		runs = languageJavaScript
	}
	if _, ok := kernels()[runs]; !ok {
		return "", "", fault.Field("language", written, fault.OneOf(languages()...)).Of(fault.Unsupported)
	}
	return language, runs, nil
}

// encodeJSON writes a request as a line of JSON. The newline before it ends the half of one that somebody before may have left.
func encodeJSON(req *kernelRequest) ([]byte, error) {
	line, err := json.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("code: %w", err)
	}
	return slices.Concat([]byte("\n"), line, []byte("\n")), nil
}

// encodeShell writes a request as words of bash, after the length of the line. What a shell could take for something is written as
// its bytes.
func encodeShell(req *kernelRequest) ([]byte, error) {
	if strings.Contains(req.Code, "\x00") {
		return nil, fault.Field("code", fault.Word("not text"), "without NUL, as a shell has it")
	}
	words := []string{req.Op, req.ID}
	if req.Op == opRun {
		words = append(words, shellWord(req.Code))
	}
	for _, name := range slices.Sorted(maps.Keys(req.Env)) {
		words = append(words, shellWord(name), shellWord(req.Env[name]))
	}
	line := strings.Join(words, " ")
	return fmt.Appendf(nil, "\n%d %s\n", len(line), line), nil
}

func shellWord(text string) string {
	var b strings.Builder
	b.WriteString("$'")
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' || c == '\'' || c == '\\' {
			fmt.Fprintf(&b, `\x%02x`, c)
			continue
		}
		b.WriteByte(c)
	}
	b.WriteByte('\'')
	return b.String()
}

// checkCode refuses what no kernel can be asked.
func checkCode(code string, env map[string]string) error {
	if !utf8.ValidString(code) {
		return fault.Field("code", fault.Word("not text"), "UTF-8")
	}
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") || !utf8.ValidString(name+value) {
			return fault.Field("env_vars", name, "names without = and values, both UTF-8 without NUL")
		}
	}
	return nil
}

// start is the program of a kernel with a nonce.
func (k *kernel) start(nonce string) []string { return slices.Concat(k.argv, []string{nonce}, k.more) }

// nonce is what start was given.
func (k *kernel) nonce(argv []string) string {
	if at := len(argv) - 1 - len(k.more); at >= 0 {
		return argv[at]
	}
	return ""
}

// noKernel explains why a kernel could not be started.
func (k *kernel) noKernel(language string, err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fault.Errorf(fault.Unsupported, "no kernel for %s: there is no %s in the sandbox", language, k.needs).
			WithHint("use a template whose image has %s", k.needs)
	}
	return fault.Errorf(fault.Unavailable, "cannot start a kernel for %s: %w", language, err).
		WithHint("the sandbox may be at its limit of processes or memory")
}
