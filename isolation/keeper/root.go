// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/overlay"
	"github.com/boxd-dev/boxd/isolation/sources"
)

// mapRoot makes the layers of a root that programs can write to, which come first of all mounts. Both are mapped as the
// workspace is, by the box's own namespace: the box user owns all that is in the image, and in what is changed of it PID 1
// has a part of its own.
func (l *launching) mapRoot() (string, error) {
	if !l.spec.Writable {
		return "", nil
	}
	for _, layer := range []struct {
		open     func() (int, error)
		writable bool
	}{
		{func() (int, error) { return l.k.work.TreeTop(l.spec.Image) }, false},
		{func() (int, error) { return l.k.work.OpenPath(l.spec.Key) }, true},
	} {
		dir, err := layer.open()
		if err != nil {
			return overlay.Target, err
		}
		err = l.mapMount(sources.Source{FD: dir, Mount: isolation.Mount{Target: overlay.Target, Writable: layer.writable}, Owner: sources.WorkOwner()})
		unix.Close(dir)
		if err != nil {
			return overlay.Target, err
		}
	}
	return "", nil
}
