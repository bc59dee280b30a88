// SPDX-License-Identifier: Apache-2.0

// Virtual environments of Python for the skills of a session. They are created inside its box, as its user, in its
// workspace, where every session with the same workspace finds them. See docs/design/skills.md.

package sessionfiles

import (
	"bytes"
	"context"
	_ "embed" // the program
	"encoding/json"
	"errors"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

//go:embed environment.py
var program string

// EnvironmentRequest asks for an environment.
type EnvironmentRequest struct {
	Env     map[string]string  // of pip, beside that of the session; PIP_INDEX_URL says where packages come from
	Timeout *quantity.Duration // nil: as long as the profile lets an execution run
}

// Environment is one that is there, as its box says.
type Environment struct {
	Path   string `json:"path"`   // in the box; bin/python is below it
	Python string `json:"python"` // its version
	Made   bool   `json:"made"`   // now; else it was there
}

// Bounds of what the program says.
const (
	maxAnswer = 8 << 10
	lastWords = 2 << 10 // of what it has written, in an error
)

// pipInstalls says what pip is told about a directory that has a file, in the order in which that is done, and the options
// of every "pip install" where nobody is there to ask or to read. Of the files that install "." only the first counts.
const pipInstalls = `{"installs":[{"file":"requirements.txt","args":["-r","requirements.txt"]},{"file":"pyproject.toml","args":["."]},` +
	`{"file":"setup.py","args":["."]}],"options":["--no-input","--disable-pip-version-check","--no-warn-script-location"]}`

// MakeEnvironment makes the environment of an active skill of a session, unless the workspace has it. Of several who ask at a time
// one makes it, and the others wait.
func MakeEnvironment(ctx context.Context, s *session.Session, skill string, req *EnvironmentRequest) (*Environment, error) {
	i := slices.IndexFunc(s.Skills(), func(k policy.ActiveSkill) bool { return k.Name == skill && !k.Missing })
	if i < 0 {
		f := fault.Errorf(fault.NotFound, "skill %s is not active in session %s", fault.Show(skill), fault.Show(s.ID)).WithHint("activate it first; boxctl inspect shows those that are")
		f.Field, f.Value = "skill", skill
		return nil, f
	}
	settings := s.Current()
	timeout := req.Timeout
	if p := s.Config().Profiles[settings.Profile]; timeout == nil && !slices.Contains(p.Locked, "timeout") {
		if timeout = &p.MaxTimeout; s.Config().PolicyOf(s.Owner).Ceilings.Timeout > 0 {
			timeout = new(min(p.MaxTimeout, s.Config().PolicyOf(s.Owner).Ceilings.Timeout))
		}
	}
	limit := min(quantity.Size(maxAnswer), s.Config().Exec.OutputLimit)
	r, err := s.Exec(ctx, &session.ExecRequest{
		Argv: []string{"python3", "-I", "-c", program, path.Join(isolation.SkillsDir, skill), isolation.Workspace, pipInstalls},
		Env:  req.Env, Dir: isolation.Workspace, Timeout: timeout, OutputLimit: &limit,
	})
	if err != nil {
		return nil, err
	}
	if err := failure(s.ID, skill, settings.Network, r); err != nil {
		return nil, err
	}
	return parse(r.Streams[0].Data)
}

// codes are the ends of the program that it knows itself.
const (
	codeNothing = 81 + iota
	codeNoVenv
	codeNoPip
	codeFailed
	codeNoRoom
)

// failure is why there is no environment, nil if there is one.
func failure(id, skill, network string, r *session.Result) error {
	said := words(r.Streams[1].Data)
	switch r.Status {
	case session.StatusTimedOut:
		return fault.Errorf(fault.Exhausted, "the environment of skill %s was not made within %v", fault.Show(skill), r.Timeout).WithHint("give it more with timeout, as far as the profile lets it; what was begun is made anew")
	case session.StatusOOMKilled:
		return fault.Errorf(fault.Exhausted, "the memory of the session does not suffice for the environment of skill %s", fault.Show(skill)).WithHint("give the session more: boxctl set")
	case session.StatusCanceled:
		return context.Canceled
	case session.StatusLost:
		return session.NotFoundError(id)
	case session.StatusStartFailed:
		if errors.Is(r.Failed, unix.ENOENT) {
			return fault.Errorf(fault.Unsupported, "there is no python3 in the box").WithHint("the image of the session has to have it")
		}
		return fault.Errorf(fault.Unavailable, "python3 could not be started: %w", r.Failed).WithHint("the session may be at its limit of processes or memory: boxctl inspect")
	case session.StatusExited, session.StatusSignaled:
	}
	if r.Status == session.StatusExited && r.ExitCode == 0 {
		return nil
	}
	f := fault.Errorf(fault.Conflict, "the environment of skill %s could not be made: %s", fault.Show(skill), said)
	f.Field, f.Value = "skill", skill
	switch r.ExitCode {
	case codeNothing:
		return f.WithHint("it needs no environment")
	case codeNoVenv, codeNoPip:
		return f.Of(fault.Unsupported).WithHint("install python3-pip, or python3-venv, where the image of the session is from: on the host, for the image host")
	case codeNoRoom:
		return f.WithHint("the workspace, or the home where that is read-only, has to have room for it")
	}
	if network == policy.NetworkOff {
		return f.WithHint("the session has no network: make it with one (network egress), or have the packages in the skill, and PIP_NO_INDEX and PIP_FIND_LINKS say so")
	}
	return f.WithHint("pip obeys PIP_INDEX_URL and its other variables: in env, or that of the session")
}

// words are the last of a program of a box, as one text that no terminal obeys.
func words(said []byte) string {
	if len(said) > lastWords {
		said = said[len(said)-lastWords:]
	}
	text := strings.Map(func(c rune) rune {
		if c != '\n' && unicode.IsControl(c) {
			return utf8.RuneError
		}
		return c
	}, strings.ToValidUTF8(string(said), "\uFFFD"))
	if text = strings.TrimSpace(text); text == "" {
		return "it has not said why"
	}
	return text
}

// parse reads what the program says, which is the box's word: nothing is done with it but to tell it.
func parse(said []byte) (*Environment, error) {
	lines := bytes.Split(bytes.TrimSpace(said), []byte("\n"))
	e := &Environment{}
	err := json.Unmarshal(lines[len(lines)-1], e)
	version := regexp.MustCompile(`^[0-9]{1,3}(\.[0-9]{1,5}){2}$`)
	plain := utf8.ValidString(e.Path) && !strings.ContainsFunc(e.Path, unicode.IsControl)
	switch {
	case err != nil:
		return nil, fault.Errorf(fault.Conflict, "what the box says of the environment is none: %w", err).WithHint("a program of the session may have changed its python3")
	case !plain || !path.IsAbs(e.Path) || path.Clean(e.Path) != e.Path || len(e.Path) >= unix.PathMax || !version.MatchString(e.Python):
		return nil, fault.Errorf(fault.Conflict, "what the box says of the environment is none").WithHint("a program of the session may have changed its python3")
	}
	return e, nil
}
