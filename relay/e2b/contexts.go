// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// contexts are the code contexts of all sandboxes. A context is a process of its session, the kernel, whose id is that of the
// context and whose labels say the rest: so it outlives boxd, and the next one finds it. A context whose kernel has ended gets
// another when code is to run in it.
type contexts struct {
	server *Server
	mu     sync.Mutex // guards the field below
	used   map[*session.Session]*boxContexts
}

func newContexts(s *Server) *contexts {
	return &contexts{server: s, used: map[*session.Session]*boxContexts{}}
}

// Of contexts.
const (
	maxContexts    = 16                 // of a sandbox
	kernelOutput   = 512 * quantity.KiB // by which code may be ahead of who reads what it writes
	stopGrace      = 2 * time.Second    // of a kernel that is to end
	labelKernel    = "e2b.kernel"       // the version of the language between boxd and the kernel
	labelContext   = "e2b.language"     // of the context
	labelOrigin    = "e2b.context"      // one of the values below
	originDefault  = "default"          // where code runs that names no context; its id is the name of the language
	originExplicit = "explicit"         // somebody has asked for it
	originImplicit = "implicit"         // it was made for one execution, and may be dropped when there are too many
	idPrefix       = "code-"            // of the processes
)

// isKernel reports whether a process is the kernel of a context, which is no process that a client of the dialect has started.
func isKernel(p *process.Process) bool { return p.Spec().Labels[labelKernel] != "" }

// boxContexts are those of one sandbox.
type boxContexts struct {
	mu   sync.Mutex // guards the fields below
	list []*codeContext
}

// codeContext is one context. Its fields do not change but for those that say who guards them.
type codeContext struct {
	ID       string
	Language string // whose kernel it has
	Dir      string
	origin   string
	created  time.Time

	turn        chan struct{} // has room for the one whose code runs; guards the fields below
	clean       bool          // the kernel is known to wait for a request
	interrupted bool          // it is not, and has been interrupted

	startMu sync.Mutex // held while a kernel is started or removed
	mu      sync.Mutex // guards the fields below
	used    time.Time
	removed bool
}

func newContext(id, language, dir, origin string, created time.Time) *codeContext {
	return &codeContext{ID: id, Language: language, Dir: dir, origin: origin, created: created, used: created, turn: make(chan struct{}, 1)}
}

// of returns the contexts of a sandbox. At first use these are the default ones, and those that an earlier boxd has left.
func (c *contexts) of(sb *sandbox) *boxContexts {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.used {
		select {
		case <-s.Ended():
			delete(c.used, s)
		default:
		}
	}
	b := c.used[sb.Session]
	if b != nil {
		return b
	}
	b = &boxContexts{}
	c.used[sb.Session] = b
	for _, p := range sb.Processes() {
		if spec := p.Spec(); isKernel(p) {
			if _, runs, err := parseLanguage(spec.Labels[labelContext]); err == nil && runs == spec.Labels[labelContext] {
				b.list = append(b.list, newContext(contextID(spec.ID), runs, spec.Command.Dir, spec.Labels[labelOrigin], p.Info().StartedAt))
			}
		}
	}
	for _, language := range []string{languagePython, languageJavaScript} {
		if sb.runs(language) && b.find(language) == nil {
			b.list = append(b.list, newContext(language, language, sb.dir(), originDefault, time.Time{}))
		}
	}
	slices.SortStableFunc(b.list, func(x, y *codeContext) int { return cmp.Compare(x.order(), y.order()) })
	return b
}

// language is parseLanguage for code of the sandbox, whose template may have it run some languages alone, and by default the first of these.
func (sb *sandbox) language(written string) (language, runs string, err error) {
	list := sb.template.Languages
	if len(list) == 0 {
		return parseLanguage(written)
	}
	if language, runs, err = parseLanguage(cmp.Or(strings.TrimSpace(written), list[0])); err != nil || !slices.Contains(list, language) {
		return "", "", fault.Field("language", written, fault.OneOf(slices.Sorted(slices.Values(list))...)).Of(fault.Unsupported)
	}
	return language, runs, nil
}

// runs reports whether code of the sandbox may need the kernel of a language.
func (sb *sandbox) runs(kernel string) bool {
	return len(sb.template.Languages) == 0 || slices.ContainsFunc(sb.template.Languages, func(language string) bool {
		_, runs, err := parseLanguage(language)
		return err == nil && runs == kernel
	})
}

// order puts the default contexts of a list first.
func (x *codeContext) order() int {
	if x.origin == originDefault {
		return 0
	}
	return 1
}

func contextID(process string) string { return process[min(len(idPrefix), len(process)):] }

// find returns the context of an id, nil if there is none. b.mu is held.
func (b *boxContexts) find(id string) *codeContext {
	if i := slices.IndexFunc(b.list, func(x *codeContext) bool { return x.ID == id }); i >= 0 {
		return b.list[i]
	}
	return nil
}

// list returns the contexts of a sandbox, the default ones first.
func (c *contexts) list(sb *sandbox) []*codeContext {
	b := c.of(sb)
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.list)
}

// get returns the context of an id.
func (c *contexts) get(sb *sandbox, id string) (*codeContext, error) {
	b := c.of(sb)
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.find(id); x != nil {
		return x, nil
	}
	return nil, noContext(id)
}

func noContext(id string) error {
	return fault.Errorf(fault.NotFound, "Context %s not found", fault.Show(id)).WithHint("list contexts: GET /contexts")
}

// create makes a context and starts its kernel. An empty language is that of the template, an empty dir where programs start. An implicit one
// takes the place of the implicit one that was longest not used if there are too many.
func (c *contexts) create(ctx context.Context, sb *sandbox, language, dir string, implicit bool) (*codeContext, error) {
	_, runs, err := sb.language(language)
	if err != nil {
		return nil, err
	}
	if !path.IsAbs(dir) {
		dir = path.Join(sb.dir(), dir)
	}
	origin := originExplicit
	if implicit {
		origin = originImplicit
	}
	x := newContext(rand.Text(), runs, path.Clean(dir), origin, time.Now())
	x.turn <- struct{}{} // others may find it in the list before its kernel has started
	defer func() { <-x.turn }()
	if err := c.add(ctx, sb, x); err != nil {
		c.forget(sb, x) // nobody hears of it
		return nil, err
	}
	if _, _, err := c.kernel(ctx, sb, x); err != nil {
		c.forget(sb, x)
		return nil, errors.Join(err, x.remove(context.WithoutCancel(ctx), sb.Session)) // who waits for it must not start a kernel that nobody can name
	}
	x.clean = true // nothing has run in it
	return x, nil
}

// add gives a context its place among those of the sandbox.
func (c *contexts) add(ctx context.Context, sb *sandbox, x *codeContext) error {
	b := c.of(sb)
	b.mu.Lock()
	var oldest *codeContext
	if len(b.list) >= maxContexts && x.origin == originImplicit {
		for _, other := range b.list {
			if other.origin == originImplicit && len(other.turn) == 0 && (oldest == nil || other.lastUsed().Before(oldest.lastUsed())) {
				oldest = other
			}
		}
	}
	if len(b.list) >= maxContexts && oldest == nil {
		b.mu.Unlock()
		return fault.Errorf(fault.Exhausted, "the sandbox has %d contexts, its limit", maxContexts).WithHint("remove a context that is not used any more")
	}
	b.list = slices.DeleteFunc(b.list, func(other *codeContext) bool { return other == oldest })
	b.list = append(b.list, x)
	b.mu.Unlock()
	if oldest == nil {
		return nil
	}
	return oldest.remove(context.WithoutCancel(ctx), sb.Session) // nobody knows of it any more
}

func (c *contexts) forget(sb *sandbox, x *codeContext) {
	b := c.of(sb)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = slices.DeleteFunc(b.list, func(other *codeContext) bool { return other == x })
}

// destroy ends a context, and what runs in it. The default ones come again when code is to run in them.
func (c *contexts) destroy(ctx context.Context, sb *sandbox, id string) error {
	x, err := c.get(sb, id)
	if err != nil {
		return err
	}
	c.forget(sb, x)
	return x.remove(context.WithoutCancel(ctx), sb.Session) // the same
}

// restart gives a context a new kernel, and ends what runs in the old one.
func (c *contexts) restart(ctx context.Context, sb *sandbox, id string) error {
	x, err := c.get(sb, id)
	if err != nil {
		return err
	}
	if err := x.end(ctx, sb.Session); err != nil {
		return err
	}
	_, _, err = c.kernel(ctx, sb, x)
	return err
}

// fallback returns the default context of a language, which is there from now on.
func (c *contexts) fallback(ctx context.Context, sb *sandbox, runs string) (*codeContext, error) {
	if x, err := c.get(sb, runs); err == nil {
		return x, nil
	}
	x := newContext(runs, runs, sb.dir(), originDefault, time.Now())
	if err := c.add(ctx, sb, x); err != nil {
		return nil, err
	}
	return c.get(sb, runs) // perhaps another has added one at the same time, which is the first
}

// kernel returns the process of a context, which it starts if there is none that runs. fresh says that nothing has been asked of it
// yet by anybody.
func (c *contexts) kernel(ctx context.Context, sb *sandbox, x *codeContext) (p *process.Process, fresh bool, err error) {
	x.startMu.Lock()
	defer x.startMu.Unlock()
	if x.isRemoved() {
		return nil, false, noContext(x.ID)
	}
	k, s := kernels()[x.Language], sb.Session
	if p, err := s.Process(idPrefix + x.ID); err == nil {
		if p.Spec().Labels[labelKernel] == kernelVersion && !hasEnded(p) {
			return p, false, nil
		}
		if err := s.RemoveProcess(ctx, p); err != nil {
			return nil, false, err
		}
	}
	p, _, err = s.StartProcess(ctx, &session.ProcessRequest{
		ID: idPrefix + x.ID, Managed: true, Stdin: true, Output: new(kernelOutput),
		Stop:   &process.Stop{Signal: "SIGTERM", Grace: new(stopGrace)},
		Labels: map[string]string{labelKernel: kernelVersion, labelContext: x.Language, labelOrigin: x.origin},
		Exec:   session.ExecRequest{Argv: k.start(rand.Text()), Dir: x.Dir, Env: c.kernelEnv(sb, x.Language)},
	})
	if err != nil {
		return nil, false, err
	}
	if err := p.Started(ctx); err != nil {
		return nil, false, k.noKernel(x.Language, err)
	}
	c.server.cfg.Log.Debug("kernel started", "session", s.ID, "context", x.ID, "language", x.Language)
	return p, true, nil
}

// envPythonKernel tells the kernel of Python which shell runs the code.
const envPythonKernel = "BOXD_PYTHON_KERNEL"

// kernelEnv is what the kernel of a language in a sandbox is told beyond the request.
func (c *contexts) kernelEnv(sb *sandbox, language string) map[string]string {
	if language != languagePython {
		return nil
	}
	return map[string]string{envPythonKernel: c.server.cfg.pythonKernel(sb.Current().Labels[wire.LabelTemplate])}
}

func hasEnded(p *process.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// remove ends the kernel of a context for good.
func (x *codeContext) remove(ctx context.Context, s *session.Session) error {
	x.mu.Lock()
	x.removed = true
	x.mu.Unlock()
	return x.end(ctx, s)
}

// end ends the kernel, if there is one.
func (x *codeContext) end(ctx context.Context, s *session.Session) error {
	x.startMu.Lock()
	defer x.startMu.Unlock()
	p, err := s.Process(idPrefix + x.ID)
	if err != nil {
		return nil // there is none
	}
	return s.RemoveProcess(ctx, p)
}

func (x *codeContext) isRemoved() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.removed
}

func (x *codeContext) lastUsed() time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.used
}

func (x *codeContext) touch() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.used = time.Now()
}

// death says how a kernel has ended.
func death(r *session.Result, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case r.Status == session.StatusOOMKilled:
		return "killed: out of memory"
	case r.Status == session.StatusExited:
		return "exit status " + strconv.Itoa(r.ExitCode)
	}
	return cmp.Or(r.Signal, string(r.Status))
}
