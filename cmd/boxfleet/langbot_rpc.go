// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/fault"
	rpc "github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// Times and bounds of what is passed on.
const (
	linkTimeout = 10 * time.Second // for a connection to a node
	hostTimeout = 10 * time.Second // for an answer that several nodes give: LangBot waits 15 seconds
	sendTimeout = time.Minute      // for a node to take a message
	maxInit     = 1 << 20          // bytes of all that INITs say
	maxHost     = 64 << 10         // bytes of what else is for all nodes
)

// langBotConn is a connection of LangBot.
type langBotConn struct {
	f        *langBotFront
	baseCtx  context.Context //nolint:containedctx // of the connection, and of its links
	instance string
	pass     access.Pass
	files    *rpc.Uploads
	tasks    sync.WaitGroup // links

	mu    sync.Mutex
	links map[string]*nodeLink // by node
}

// answer performs a request.
func (c *langBotConn) answer(ctx context.Context, r *rpc.Request, reply func([]byte)) {
	var a *nodeAnswer
	var text []byte
	err := c.f.safely(r.Action, func() (err error) {
		if a, err = c.do(ctx, r); err == nil {
			text = a.Encode(r.Seq)
		}
		return err
	})
	defer a.free()
	if err != nil {
		text = rpc.Failure(r.Seq, inClass(err))
	}
	reply(text)
}

// safely does something for LangBot. A panic is its error: all else that the gateway does continues.
func (f *langBotFront) safely(what string, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			f.g.log.Error("what LangBot has asked for failed because of a bug in boxfleet", "what", what, "panic", p, "stack", string(debug.Stack()))
			err = rpc.Refusef("RuntimeError", "boxfleet failed because of a bug; details are in its log")
		}
	}()
	return do()
}

// inClass gives an error a class of the protocol.
func inClass(err error) error {
	err = rpc.Explain(err)
	if _, ok := errors.AsType[*rpc.Refusal](err); ok {
		return err
	}
	return rpc.Refusef("BoxError", "%v", err)
}

// nodeAnswer is an answer, which may hold memory of the answers of all nodes until it is sent.
type nodeAnswer struct {
	*rpc.Answer
	reply *rpc.Message // nil: none
}

func (a *nodeAnswer) free() {
	if a != nil && a.reply != nil {
		a.reply.Free()
	}
}

// succeeds is an answer of the gateway itself.
func succeeds(data any) *nodeAnswer {
	return &nodeAnswer{Answer: &rpc.Answer{Message: "success", Data: data, Chunk: "continue"}}
}

func (c *langBotConn) do(ctx context.Context, r *rpc.Request) (*nodeAnswer, error) {
	known, ok := rpc.ActionOf(r.Action)
	switch {
	case !ok:
		return nil, rpc.Refusef("ValueError", "Action %s not found", r.Action)
	case r.Context == nil && !known.Host:
		return nil, rpc.Refusef("PermissionError", "Box tenant action requires a trusted Workspace context")
	case r.Context != nil && r.Context.Instance != c.instance:
		return nil, rpc.Refusef("PermissionError", "Box action context does not match the trusted instance")
	case r.Action == rpc.ActionPing:
		return succeeds(struct{}{}), nil
	case r.Action == rpc.ActionFileChunk:
		return succeeds(struct{}{}), c.files.Put(r.Data, c.f.fileLimit())
	case known.Host:
		return c.host(ctx, r)
	}
	return c.workspace(ctx, r, &known)
}

// workspace has the node of a Workspace perform an action.
func (c *langBotConn) workspace(ctx context.Context, r *rpc.Request, known *rpc.Action) (*nodeAnswer, error) {
	use := &workspaceUse{pass: c.pass, id: workspaceID(c.instance, r.Context.Workspace), generation: r.Context.Generation, stores: known.Stores}
	n, err := c.f.place(ctx, use)
	if err != nil {
		return nil, err
	}
	l, waited, err := c.link(ctx, &n)
	if err != nil {
		return nil, err
	}
	if known.File {
		if err := c.send(ctx, l, r.Data["file_key"]); err != nil {
			return nil, err
		}
	}
	if waited || known.File { // meanwhile its claim may have changed
		now, err := c.f.place(ctx, use)
		if err != nil {
			return nil, err
		}
		if now.Name != l.node || now.Instance != l.instance {
			return nil, fault.Errorf(fault.Unavailable, "node %s does not have the Workspace any more", l.node).WithHint("nothing was done: ask again")
		}
	}
	return l.call(ctx, r)
}

// piece is how many bytes of a file a message has, as the protocol wants it.
const piece = 16 << 10

// send sends an uploaded file to a node, piece after piece. Without such a file, the node says what is wrong.
func (c *langBotConn) send(ctx context.Context, l *nodeLink, key json.RawMessage) error {
	name, _ := rpc.StringOf(key)
	file, ok := c.files.Take(name)
	if !ok {
		return nil
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	amount := max((info.Size()+piece-1)/piece, 1)
	buffer := make([]byte, piece)
	for i := range amount {
		n, err := io.ReadFull(file, buffer)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("upload: %w", err)
		}
		data := map[string]json.RawMessage{"file_key": key}
		for name, value := range map[string]any{"chunk_base64": base64.StdEncoding.EncodeToString(buffer[:n]), "chunk_index": i, "chunk_amount": amount} {
			data[name], _ = json.Marshal(value) // a text or a number: cannot fail
		}
		a, err := l.call(ctx, &rpc.Request{Action: rpc.ActionFileChunk, Data: data})
		if err != nil {
			return err
		}
		a.free()
		if a.Code != 0 {
			return rpc.Refusef("", "%s", a.Message)
		}
	}
	return nil
}

// fileLimit is the size of a file that LangBot may upload.
func (f *langBotFront) fileLimit() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.limits.MaxRPCFileBytes
}

// merge remembers what an INIT says, for nodes that are connected later.
func (f *langBotFront) merge(fields map[string]json.RawMessage) error {
	limits, given, err := rpc.ReadLimits(fields["limits"])
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	next := maps.Clone(f.init)
	maps.Copy(next, fields)
	if sizeOf(next) > maxInit {
		return rpc.Refusef("ValueError", "the box configuration exceeds %d bytes", maxInit)
	}
	f.init = next
	if given {
		f.limits = limits
	}
	return nil
}

// sizeOf is how many bytes data has.
func sizeOf(data map[string]json.RawMessage) (size int) {
	for name, value := range data {
		size += len(name) + len(value)
	}
	return size
}

// nodeSaid is what a node says to what all are asked.
type nodeSaid struct {
	node   string
	answer *nodeAnswer
	err    error
}

// host has all nodes perform an action that is about LangBot itself, and makes one answer of theirs.
func (c *langBotConn) host(ctx context.Context, r *rpc.Request) (*nodeAnswer, error) {
	if r.Action == rpc.ActionInit {
		if err := c.f.merge(r.Data); err != nil {
			return nil, err
		}
	} else if sizeOf(r.Data) > maxHost {
		return nil, rpc.Refusef("ValueError", "the data of %s exceeds %d bytes", r.Action, maxHost)
	}
	ctx, cancel := context.WithTimeout(ctx, hostTimeout)
	defer cancel()
	nodes := c.f.nodes()
	all := make([]nodeSaid, len(nodes))
	var requests sync.WaitGroup
	for i, n := range nodes {
		requests.Go(func() {
			all[i].node = n.Name
			all[i].err = c.f.safely(r.Action, func() error {
				l, _, err := c.link(ctx, &n)
				if err == nil {
					all[i].answer, err = l.call(ctx, r)
				}
				return err
			})
		})
	}
	requests.Wait()
	best := oneOf(r.Action, all)
	for _, s := range all {
		if s.answer != nil && s.answer != best.answer {
			s.answer.free()
		}
	}
	switch {
	case best.err != nil:
		return nil, best.err
	case best.answer != nil:
		return best.answer, nil
	case r.Action == rpc.ActionInit: // those that come hear it
		return succeeds(map[string]any{"initialized": true}), nil
	case r.Action == rpc.ActionBackend:
		return succeeds(backend(false)), nil
	}
	return nil, noLangBotNode()
}

// oneOf chooses what LangBot hears of what nodes say. Of whether boxes can be had, the node that has them is believed; whatever else fails on
// one has failed. What a node has not heard that does not answer is told by an INIT when it is connected again, and by nothing else.
func oneOf(action string, all []nodeSaid) (best nodeSaid) {
	isQuery := action == rpc.ActionHealth || action == rpc.ActionBackend
	for _, s := range all {
		good := s.err == nil && s.answer.Code == 0
		switch {
		case s.err != nil && (isQuery || action == rpc.ActionInit):
			if isQuery && best.answer == nil && best.err == nil {
				best = s
			}
		case isQuery && good && (best.answer == nil || !available(best.answer)):
			best = s
		case isQuery && best.answer == nil && best.err == nil, !isQuery && best.answer == nil && best.err == nil:
			best = s
		case !isQuery && !good && best.err == nil && best.answer.Code == 0:
			best = s
		}
	}
	return best
}

// available reports whether a node says that it can have boxes.
func available(a *nodeAnswer) bool {
	raw, _ := a.Data.(json.RawMessage)
	var body struct {
		Available *bool `json:"available"`
		Ready     *bool `json:"ready"`
	}
	if a.Code != 0 || json.Unmarshal(raw, &body) != nil {
		return false
	}
	return body.Available != nil && *body.Available || body.Ready != nil && *body.Ready
}

// nodeLink is a connection of the action RPC to a node, for one connection of LangBot.
type nodeLink struct {
	node     string
	instance string // of the node, as it was known when this was opened
	f        *langBotFront
	open     chan struct{} // closed when ws is there, or err
	done     chan struct{} // closed when it has ended, and err says why
	err      error
	ws       *websocket.Conn
	baseCtx  context.Context //nolint:containedctx // of ws
	turn     chan struct{}   // who has put something in writes
	sends    sync.WaitGroup  // writers

	mu      sync.Mutex
	seq     int64
	waiting map[int64]chan *nodeAnswer
}

func newNodeLink(f *langBotFront, node, instance string) *nodeLink {
	return &nodeLink{
		node: node, instance: instance, f: f, open: make(chan struct{}), done: make(chan struct{}), turn: make(chan struct{}, 1),
		waiting: map[int64]chan *nodeAnswer{},
	}
}

// link returns the connection to a node, and opens it if there is none; waited says so. One to the node before it was started again ends by
// itself.
func (c *langBotConn) link(ctx context.Context, n *nodeState) (l *nodeLink, waited bool, err error) {
	c.mu.Lock()
	l = c.links[n.Name]
	if l != nil && l.instance != n.Instance && !c.f.g.isInstance(n.Name, n.Instance) { // it was read before the other
		c.mu.Unlock()
		return nil, false, fault.Errorf(fault.Unavailable, "node %s was started again", n.Name).WithHint("ask again")
	}
	if l == nil || l.instance != n.Instance {
		l = newNodeLink(c.f, n.Name, n.Instance)
		c.links[n.Name] = l
		c.tasks.Go(func() { c.run(l, n) }) //nolint:contextcheck // ends with the node, or the connection
	}
	c.mu.Unlock()
	select {
	case <-l.open:
		return l, false, nil
	default:
	}
	select {
	case <-l.open:
		return l, true, nil
	case <-l.done:
		return nil, true, l.err
	case <-ctx.Done():
		return nil, true, ctx.Err()
	}
}

// run opens a link and reads its answers until it ends.
func (c *langBotConn) run(l *nodeLink, n *nodeState) {
	err := c.f.safely("a connection to node "+l.node, func() error {
		if err := l.dial(c, n); err != nil {
			return err
		}
		return l.read(c)
	})
	c.mu.Lock()
	if c.links[l.node] == l {
		delete(c.links, l.node)
	}
	c.mu.Unlock()
	l.end(err)
}

// end tells all who wait why the link has ended.
func (l *nodeLink) end(err error) {
	if _, ok := errors.AsType[*fault.Error](err); !ok {
		err = fault.Errorf(fault.Unavailable, "the connection to node %s has ended: %w", l.node, err).WithHint("what was asked may be done or not: look, and ask again")
	}
	l.err = err
	close(l.done)
	for _, ch := range l.abandon() {
		close(ch)
	}
	l.sends.Wait()
}

// abandon takes all who wait.
func (l *nodeLink) abandon() map[int64]chan *nodeAnswer {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.waiting
	l.waiting = nil
	return all
}

// dial connects to the node, in the name of LangBot's principal.
func (l *nodeLink) dial(c *langBotConn, n *nodeState) error {
	ctx, cancel := context.WithTimeout(c.baseCtx, linkTimeout)
	defer cancel()
	signed := roundTrip(func(out *http.Request) (*http.Response, error) {
		if err := c.f.g.sign(&call{r: out, pass: c.pass, langBot: true}, n, out); err != nil {
			return nil, err
		}
		return c.f.g.transport.RoundTrip(out)
	})
	ws, resp, err := websocket.Dial(ctx, "ws://"+n.Name+rpc.PathRPC, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: signed}, HTTPHeader: http.Header{http.CanonicalHeaderKey(rpc.HeaderInstance): {c.instance}},
	})
	if resp != nil && resp.Body != nil && err != nil {
		defer resp.Body.Close()
	}
	if err != nil {
		if resp != nil && resp.Header.Get(rpc.HeaderRefused) != "" {
			return unreached(l.node, &nodeRefusal{resp.Header.Get(rpc.HeaderRefused)})
		}
		return unreached(l.node, err)
	}
	ws.SetReadLimit(rpc.MaxMessage)
	l.ws = ws
	return nil
}

// read tells the node what LangBot has said to all, and reads answers until the link ends.
func (l *nodeLink) read(c *langBotConn) error {
	ctx, cancel := context.WithCancelCause(c.baseCtx)
	l.baseCtx = ctx
	var background sync.WaitGroup
	defer background.Wait()
	defer l.ws.CloseNow() //nolint:errcheck // a closed one is fine
	defer cancel(nil)
	background.Go(func() {
		if err := l.f.safely(rpc.ActionInit, func() error { return l.sendInit(ctx) }); err != nil {
			cancel(err)
			return
		}
		close(l.open)
	})
	background.Go(func() { l.watch(ctx, cancel) })
	var waits atomic.Bool // unused: this connection sends no pings
	for {
		m, err := l.f.answers.Read(ctx, l.ws, &waits)
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		a, err := rpc.ParseAnswer(m.Data)
		m.Data = nil
		if err != nil {
			m.Free()
			return err
		}
		l.deliver(&nodeAnswer{a, m})
	}
}

// watch ends the link when the node that was connected may not have its Workspaces any more.
func (l *nodeLink) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for l.f.g.isInstance(l.node, l.instance) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
	cancel(errors.New("it is lost, or was started again"))
}

// deliver hands an answer to who waits for it.
func (l *nodeLink) deliver(a *nodeAnswer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ch := l.waiting[a.Seq]; ch != nil {
		delete(l.waiting, a.Seq)
		ch <- a // it has room, as there is one answer
		return
	}
	a.free() // nobody waits any more
}

// sendInit sends the configuration that LangBot has sent to this gateway. The node decides what of it holds.
func (l *nodeLink) sendInit(ctx context.Context) error {
	l.f.mu.Lock()
	init := l.f.init
	l.f.mu.Unlock()
	if len(init) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	a, err := l.call(ctx, &rpc.Request{Action: rpc.ActionInit, Data: init})
	if err != nil {
		return err
	}
	defer a.free()
	if a.Code != 0 {
		l.f.g.log.Warn("a node refuses the configuration of LangBot", "node", l.node, "reason", a.Message)
	}
	return nil
}

// call sends a request to the node and waits for the answer, which must be freed.
func (l *nodeLink) call(ctx context.Context, r *rpc.Request) (*nodeAnswer, error) {
	ch := make(chan *nodeAnswer, 1)
	l.mu.Lock()
	if l.waiting == nil {
		l.mu.Unlock()
		return nil, l.err
	}
	l.seq++
	seq := l.seq
	l.waiting[seq] = ch
	l.sends.Add(1)
	l.mu.Unlock()
	defer l.forget(seq, ch)
	writes := false
	defer func() {
		if !writes {
			l.sends.Done()
		}
	}()
	text, err := rpc.EncodeRequest(r, seq)
	if err == nil {
		err = l.takeTurn(ctx)
	}
	if err != nil {
		return nil, err
	}
	writes = true
	go l.write(text) //nolint:contextcheck // who asks may not wait so long, and others use the link
	select {
	case a, ok := <-ch:
		if !ok {
			return nil, l.err
		}
		return a, nil
	case <-ctx.Done():
		return nil, fault.Errorf(fault.Unavailable, "node %s has not answered in time", l.node).WithHint("what was asked may be done or not: look, and ask again")
	}
}

// takeTurn waits until nothing else is being written.
func (l *nodeLink) takeTurn(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return fault.Errorf(fault.Unavailable, "node %s takes no message in time", l.node).WithHint("nothing was done: ask again")
	}
}

// write writes a message, in its turn.
func (l *nodeLink) write(text []byte) {
	defer l.sends.Done()
	defer func() { <-l.turn }()
	ctx, cancel := context.WithTimeout(l.baseCtx, sendTimeout)
	defer cancel()
	if l.ws.Write(ctx, websocket.MessageText, text) != nil { // it may be cut off in the message
		_ = l.ws.CloseNow() // its reader says why
	}
}

// forget gives up waiting for an answer, which may have come.
func (l *nodeLink) forget(seq int64, ch chan *nodeAnswer) {
	l.mu.Lock()
	_, waits := l.waiting[seq]
	delete(l.waiting, seq)
	l.mu.Unlock()
	if waits {
		return
	}
	select {
	case a := <-ch:
		a.free()
	default:
	}
}
