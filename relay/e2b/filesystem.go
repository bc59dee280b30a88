// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay/e2b/protocol"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// Bounds of lists and watches.
const (
	maxEntries  = 100_000
	maxDepth    = 4096
	maxWatchers = 64               // of one sandbox that are asked for their events
	maxEvents   = 16 << 10         // that a watcher keeps until it is asked
	maxKept     = 1 << 20          // bytes of these events: programs of the sandbox choose the names
	watcherLife = 10 * time.Minute // without being asked
)

// metadataPrefix begins the extended attributes of a file that are its metadata.
const metadataPrefix = "user.e2b."

// filesystemService is the files of a sandbox.
type filesystemService struct {
	server *Server
}

// fileError is a failure of a file operation as RPCs have it.
func (s *Server) fileError(ctx context.Context, sb *sandbox, err error) error {
	if err == nil {
		return nil
	}
	if lost(sb.Session, err) {
		return connect.NewError(connect.CodeUnavailable, errors.New(strings.ToLower(wire.GoneMessage)))
	}
	f, ok := errors.AsType[*sessionfiles.Failure](err)
	if !ok {
		return s.rpcError(ctx, err)
	}
	code, ok := fileCodes()[f.Kind]
	if !ok {
		code = connect.CodeInvalidArgument
	}
	return connect.NewError(code, errors.New(f.Error()))
}

// fileCodes has what is another code than that of an invalid argument.
func fileCodes() map[files.Kind]connect.Code {
	return map[files.Kind]connect.Code{
		files.NotFound: connect.CodeNotFound, files.Exists: connect.CodeAlreadyExists, files.NotPermitted: connect.CodePermissionDenied, files.ReadOnly: connect.CodePermissionDenied,
		files.NoSpace: connect.CodeResourceExhausted, files.TooMany: connect.CodeResourceExhausted, files.TooLarge: connect.CodeResourceExhausted,
		files.Broken: connect.CodeInternal, files.Unsupported: connect.CodeUnimplemented,
	}
}

// entry describes what is at an absolute path. Of a link, type and mode are those of what it leads to.
func entry(at string, e *files.Entry) *protocol.EntryInfo {
	info := &protocol.EntryInfo{
		Name: strings.ToValidUTF8(path.Base(at), "\uFFFD"), Path: strings.ToValidUTF8(at, "\uFFFD"), Type: fileType(e.Type), Size: e.Size, Mode: e.Mode,
		Permissions: permissions(e), ModifiedTime: timestamp(e.Time), Metadata: metadata(e),
	}
	if o := e.Owner; o != nil {
		info.Owner, info.Group = strings.ToValidUTF8(o.User, "\uFFFD"), strings.ToValidUTF8(o.Group, "\uFFFD")
		if o.User == "" {
			info.Owner = strconv.FormatUint(uint64(o.UID), 10)
		}
		if o.Group == "" {
			info.Group = strconv.FormatUint(uint64(o.GID), 10)
		}
	}
	if e.Type == files.TypeLink {
		target := string(e.Resolved)
		if e.Resolved == nil {
			target = string(e.Target)
		}
		target = strings.ToValidUTF8(target, "\uFFFD")
		info.SymlinkTarget, info.Type, info.Mode = &target, fileType(e.TargetType), e.TargetMode
	}
	return info
}

// timestamp is a time as messages have it, which is of the years 1 to 9999: files may have any.
func timestamp(at time.Time) *timestamppb.Timestamp {
	first, last := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	switch {
	case at.Before(first):
		at = first
	case at.After(last):
		at = last
	}
	return timestamppb.New(at)
}

func fileType(name string) protocol.FileType {
	switch name {
	case files.TypeFile:
		return protocol.FileType_FILE_TYPE_FILE
	case files.TypeDirectory:
		return protocol.FileType_FILE_TYPE_DIRECTORY
	}
	return protocol.FileType_FILE_TYPE_UNSPECIFIED
}

// permissions is what ls -l shows, with L for links.
func permissions(e *files.Entry) string {
	mode := fs.FileMode(e.Mode & 0o777)
	switch e.Type {
	case files.TypeDirectory:
		mode |= fs.ModeDir
	case files.TypeLink:
		mode |= fs.ModeSymlink
	case files.TypeFIFO:
		mode |= fs.ModeNamedPipe
	case files.TypeSocket:
		mode |= fs.ModeSocket
	case files.TypeDevice:
		mode |= fs.ModeDevice
	}
	return mode.String()
}

// metadata is that of a file.
func metadata(e *files.Entry) map[string]string {
	var all map[string]string
	for name, value := range e.Xattrs {
		key, ok := strings.CutPrefix(name, metadataPrefix)
		if !ok {
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		all[strings.ToValidUTF8(key, "\uFFFD")] = strings.ToValidUTF8(string(value), "\uFFFD")
	}
	return all
}

// do asks for one thing, as the session has it.
func (f *filesystemService) do(ctx context.Context, req *files.Request) (*files.Answer, error) {
	sb := of(ctx)
	answer, _, err := sessionfiles.Do(ctx, sb.Session, sb.as(), req, nil)
	return answer, f.server.fileError(ctx, sb, err)
}

// absolute is the path that a request means, once its user is one that the sandbox has.
func absolute(ctx context.Context, text string) (string, error) {
	sb := of(ctx)
	if call, ok := connect.CallInfoForHandlerContext(ctx); ok {
		if err := sb.user(call.RequestHeader()); err != nil {
			return "", err
		}
	}
	return sb.path(text), nil
}

func (f *filesystemService) stat(ctx context.Context, at string) (*protocol.EntryInfo, error) {
	answer, err := f.do(ctx, &files.Request{Stat: &files.Stat{Path: []byte(at), Xattrs: true}})
	if err != nil {
		return nil, err
	}
	return entry(at, answer.Stat), nil
}

// Stat describes what is at a path.
func (f *filesystemService) Stat(ctx context.Context, req *protocol.StatRequest) (*protocol.StatResponse, error) {
	at, err := absolute(ctx, req.Path)
	if err != nil {
		return nil, err
	}
	info, err := f.stat(ctx, at)
	if err != nil {
		return nil, err
	}
	return &protocol.StatResponse{Entry: info}, nil
}

// MakeDir makes a directory, with those above it.
func (f *filesystemService) MakeDir(ctx context.Context, req *protocol.MakeDirRequest) (*protocol.MakeDirResponse, error) {
	at, err := absolute(ctx, req.Path)
	if err != nil {
		return nil, err
	}
	answer, err := f.do(ctx, &files.Request{Mkdir: &files.Mkdir{Path: []byte(at), Mode: 0o755, Parents: true}})
	if err != nil {
		return nil, err
	}
	return &protocol.MakeDirResponse{Entry: entry(at, &answer.Write.File)}, nil
}

// Move renames what is at a path. What is at the other goes.
func (f *filesystemService) Move(ctx context.Context, req *protocol.MoveRequest) (*protocol.MoveResponse, error) {
	from, err := absolute(ctx, req.Source)
	if err != nil {
		return nil, err
	}
	to := of(ctx).path(req.Destination)
	if _, err := f.do(ctx, &files.Request{Move: &files.Move{From: []byte(from), To: []byte(to), Overwrite: true, Parents: true}}); err != nil {
		return nil, err
	}
	info, err := f.stat(ctx, to)
	if err != nil {
		return nil, err
	}
	return &protocol.MoveResponse{Entry: info}, nil
}

// ListDir lists a directory, down to a depth; 0 is 1.
func (f *filesystemService) ListDir(ctx context.Context, req *protocol.ListDirRequest) (*protocol.ListDirResponse, error) {
	at, err := absolute(ctx, req.Path)
	if err != nil {
		return nil, err
	}
	answer, err := f.do(ctx, &files.Request{List: &files.List{Path: []byte(at), Depth: min(max(1, int(req.Depth)), maxDepth), Limit: maxEntries, Xattrs: true}})
	if err != nil {
		return nil, err
	}
	if answer.List.Cut != "" {
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("directory %s has more than %d entries at this depth: list it with less depth", fault.Show(at), maxEntries))
	}
	list := &protocol.ListDirResponse{}
	for i := range answer.List.Entries {
		e := &answer.List.Entries[i]
		list.Entries = append(list.Entries, entry(path.Join(at, string(e.Path)), e))
	}
	return list, nil
}

// Remove removes what is at a path, with everything in it. Nothing there is fine.
func (f *filesystemService) Remove(ctx context.Context, req *protocol.RemoveRequest) (*protocol.RemoveResponse, error) {
	at, err := absolute(ctx, req.Path)
	if err != nil {
		return nil, err
	}
	if _, err := f.do(ctx, &files.Request{Remove: &files.Remove{Path: []byte(at), Recursive: true, Missing: true}}); err != nil {
		return nil, err
	}
	return &protocol.RemoveResponse{}, nil
}

// happened is an event as messages; none for what clients do not know.
func happened(dir string, e *files.Event, entries bool) *protocol.FilesystemEvent {
	kinds := map[string]protocol.EventType{
		files.Created: protocol.EventType_EVENT_TYPE_CREATE, files.Written: protocol.EventType_EVENT_TYPE_WRITE, files.Removed: protocol.EventType_EVENT_TYPE_REMOVE,
		files.Renamed: protocol.EventType_EVENT_TYPE_RENAME, files.Chmodded: protocol.EventType_EVENT_TYPE_CHMOD,
	}
	kind, ok := kinds[e.What]
	if !ok {
		return nil
	}
	m := &protocol.FilesystemEvent{Name: strings.ToValidUTF8(string(e.Path), "\uFFFD"), Type: kind}
	if entries && e.Entry != nil {
		m.Entry = entry(path.Join(dir, string(e.Path)), e.Entry)
	}
	return m
}

// errOverflow ends a watch that has lost events.
var errOverflow = connect.NewError(connect.CodeResourceExhausted, errors.New("events were lost: more happened than the watch could send; watch again, and list the directory"))

// WatchDir sends what happens in a directory.
func (f *filesystemService) WatchDir(ctx context.Context, req *protocol.WatchDirRequest, stream *connect.ServerStream[protocol.WatchDirResponse]) error {
	sb := of(ctx)
	release, err := sb.limits.Stream()
	if err != nil {
		return f.server.rpcError(ctx, err)
	}
	defer release()
	if err := sb.user(header(ctx)); err != nil {
		return err
	}
	at := sb.path(req.Path)
	var sendMu sync.Mutex // a message, or a sign of life
	quiet := time.NewTicker(ping(ctx))
	defer quiet.Stop()
	ctx, cancel := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	started := make(chan struct{})
	ready := sync.OnceFunc(func() { close(started) })
	background.Go(func() {
		select {
		case <-started:
		case <-ctx.Done():
			return
		}
		for {
			select {
			case <-quiet.C:
				sendMu.Lock()
				err := stream.Send(&protocol.WatchDirResponse{Event: &protocol.WatchDirResponse_Keepalive{Keepalive: &protocol.WatchDirResponse_KeepAlive{}}})
				sendMu.Unlock()
				if err != nil {
					cancel()
				}
			case <-ctx.Done():
				return
			}
		}
	})
	err = sessionfiles.Watch(ctx, sb.Session, sb.as(), &files.Watch{Path: []byte(at), Recursive: req.Recursive, Entries: req.IncludeEntry}, func(e *files.Event) error {
		sendMu.Lock()
		defer sendMu.Unlock()
		quiet.Reset(ping(ctx))
		switch e.What {
		case files.Watching:
			ready()
			return stream.Send(&protocol.WatchDirResponse{Event: &protocol.WatchDirResponse_Start{Start: &protocol.WatchDirResponse_StartEvent{}}})
		case files.Overflow:
			return errOverflow
		}
		if m := happened(at, e, req.IncludeEntry); m != nil {
			return stream.Send(&protocol.WatchDirResponse{Event: &protocol.WatchDirResponse_Filesystem{Filesystem: m}})
		}
		return nil
	})
	return f.server.fileError(ctx, sb, err)
}

// watcher is a watch whose events are kept until they are asked for.
type watcher struct {
	sess   *session.Session
	cancel context.CancelFunc
	unused *time.Timer

	mu     sync.Mutex
	events []*protocol.FilesystemEvent
	size   int   // bytes of them
	err    error // that has ended it
}

// watches are the watchers of all sandboxes, by their ids.
type watches struct {
	mu  sync.Mutex
	all map[string]*watcher
	wg  sync.WaitGroup
}

// close ends all of them.
func (w *watches) close() {
	w.mu.Lock()
	for _, one := range w.all {
		one.cancel()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

// find returns the watcher of an id that is of a session.
func (w *watches) find(sess *session.Session, id string) (*watcher, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one := w.all[id]; one != nil && one.sess == sess {
		one.unused.Reset(watcherLife)
		return one, nil
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("watcher %s not found: it was removed, or its events were not read for %v", fault.Show(id), watcherLife))
}

// begin makes room for a watcher.
func (w *watches) begin(sess *session.Session, cancel context.CancelFunc) (string, *watcher, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, one := range w.all {
		if one.sess == sess {
			n++
		}
	}
	if n >= maxWatchers {
		return "", nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("the sandbox has %d watchers, the limit: remove one", maxWatchers))
	}
	id := strings.ToLower(rand.Text()[:16])
	one := &watcher{sess: sess, cancel: cancel, unused: time.AfterFunc(watcherLife, func() { w.drop(id) })}
	if w.all == nil {
		w.all = map[string]*watcher{}
	}
	w.all[id] = one
	return id, one, nil
}

// drop forgets a watcher that has ended.
func (w *watches) drop(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one := w.all[id]; one != nil {
		one.unused.Stop()
		one.cancel()
		delete(w.all, id)
	}
}

// CreateWatcher begins a watch whose events are kept.
func (f *filesystemService) CreateWatcher(ctx context.Context, req *protocol.CreateWatcherRequest) (*protocol.CreateWatcherResponse, error) {
	at, err := absolute(ctx, req.Path)
	if err != nil {
		return nil, err
	}
	sb := of(ctx)
	baseCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	id, one, err := f.server.watches.begin(sb.Session, cancel)
	if err != nil {
		cancel()
		return nil, err
	}
	started := make(chan error, 1)
	f.server.watches.wg.Go(func() { // ends with the watcher, its session, or boxd
		defer cancel()
		err := sessionfiles.Watch(baseCtx, sb.Session, sb.as(), &files.Watch{Path: []byte(at), Recursive: req.Recursive, Entries: req.IncludeEntry}, func(e *files.Event) error {
			if e.What == files.Watching {
				select {
				case started <- nil:
				default: // it has said so before
				}
				return nil
			}
			return one.take(at, e, req.IncludeEntry)
		})
		err = f.server.fileError(baseCtx, sb, err)
		one.mu.Lock()
		one.err = err
		one.mu.Unlock()
		select {
		case started <- err:
		default:
		}
	})
	select {
	case err = <-started:
	case <-ctx.Done():
		err = f.server.rpcError(ctx, ctx.Err())
	}
	if err != nil {
		f.server.watches.drop(id)
		return nil, err
	}
	return &protocol.CreateWatcherResponse{WatcherId: id}, nil
}

// take keeps an event.
func (w *watcher) take(dir string, e *files.Event, entries bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := happened(dir, e, entries)
	size := proto.Size(m)
	switch {
	case e.What == files.Overflow, len(w.events) >= maxEvents, w.size+size > maxKept:
		w.events, w.size = nil, 0
		return errOverflow
	case m != nil:
		w.events, w.size = append(w.events, m), w.size+size
	}
	return nil
}

// GetWatcherEvents answers with what has happened since it was asked before.
func (f *filesystemService) GetWatcherEvents(ctx context.Context, req *protocol.GetWatcherEventsRequest) (*protocol.GetWatcherEventsResponse, error) {
	one, err := f.server.watches.find(of(ctx).Session, req.WatcherId)
	if err != nil {
		return nil, err
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	events := one.events
	one.events, one.size = nil, 0
	if len(events) == 0 && one.err != nil {
		return nil, one.err
	}
	return &protocol.GetWatcherEventsResponse{Events: events}, nil
}

// RemoveWatcher ends a watch.
func (f *filesystemService) RemoveWatcher(ctx context.Context, req *protocol.RemoveWatcherRequest) (*protocol.RemoveWatcherResponse, error) {
	if _, err := f.server.watches.find(of(ctx).Session, req.WatcherId); err != nil {
		return nil, err
	}
	f.server.watches.drop(req.WatcherId)
	return &protocol.RemoveWatcherResponse{}, nil
}
