// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
)

// Two empty directories of the skeleton, where layer and result are attached while the tree is
// built.
const (
	layerPlace  = "mnt"
	resultPlace = "media"
)

// enterImageRoot makes the tree of an image of the store the root of the calling thread's mount namespace, as enterRoot does with
// the host's. tree is a detached mount of it, files a descriptor of the program that serves files in boxes.
//
// Nothing is looked up in the image, which is untrusted: what every box has is in a skeleton of our own, the upper of two
// read-only layers (overlayfs). A directory of the skeleton is merged with one of the image, and hides anything else of that
// name, so that a symbolic link or a file there leads nowhere.
func enterImageRoot(tree, files int) error {
	b, err := beginRoot() // the skeleton
	if err != nil {
		return err
	}
	defer b.close()
	for _, part := range []func() error{
		func() error { return b.directories() }, b.devices, func() error { return b.rootLinks(nil) }, func() error { return b.filesProgram(files) },
		func() error { return linux.AttachMount(tree, b.root, layerPlace) },
	} {
		if err := part(); err != nil {
			return err
		}
	}
	root, err := b.overlay()
	if err != nil {
		return err
	}
	defer unix.Close(root)
	if err := b.showProgram(root); err != nil {
		return err
	}
	if err := attachProc(root); err != nil {
		return err
	}
	return changeRoot(root)
}

// overlay puts the skeleton on top of the image. Device nodes work only in the skeleton's /dev.
func (b *rootBuilder) overlay() (int, error) {
	root, err := linux.NewMount("overlay", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, "lowerdir", staging+":"+staging+"/"+layerPlace)
	if err != nil {
		return -1, fmt.Errorf("overlay of the image: %w", err)
	}
	err = func() error {
		if err := linux.AttachMount(root, b.root, resultPlace); err != nil {
			return fmt.Errorf("attach the overlay: %w", err)
		}
		dev, err := linux.CloneMount(b.root, "dev", true)
		if err != nil {
			return fmt.Errorf("clone /dev: %w", err)
		}
		defer unix.Close(dev)
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC, Propagation: unix.MS_PRIVATE}
		if err := linux.RestrictMount(dev, &attr); err != nil {
			return fmt.Errorf("restrict /dev: %w", err)
		}
		return linux.AttachMount(dev, root, "dev")
	}()
	if err != nil {
		unix.Close(root)
		return -1, err
	}
	return root, nil
}
