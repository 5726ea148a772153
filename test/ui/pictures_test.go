// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"os"
	"testing"

	"github.com/chromedp/chromedp"
)

// mostPictureBytes bounds a picture of the documents.
const mostPictureBytes = 150_000

// healed is a Diagnosis that has replaced a bind.
func healed() object {
	d := waiting(hashOf(`boot "b"`), `boot "b"`)
	d["metadata"].(object)["name"] = "web-0-4k2fd"
	d["spec"].(object)["mode"] = "Recover"
	operation := func(id int, name, phase, began, ended string) object {
		return object{"id": id, "operation": name, "phase": phase, "startTime": "2026-11-26T21:03:0" + began + "Z", "completionTime": "2026-11-26T21:03:0" + ended + "Z"}
	}
	repair := operation(1, "auto-recover", "Succeeded", "1.400000", "1.900000")
	repair["actions"] = []object{{
		"kind": "Replace", "target": "/var/lib/kubelet/pods/37993802/volume-subpaths/conf/nginx/0", "fault": "StaleSubPath", "phase": "Done", "message": `put "nginx.conf" in its place`,
		"mount": object{"mountInfoID": 412, "namespace": 4026532201, "device": "0:39", "root": "/nginx.conf//deleted", "fsType": "tmpfs"},
		"calls": []object{{"name": "move_mount", "arguments": "MOVE_MOUNT_BENEATH", "result": "ok"}, {"name": "umount2", "arguments": "MNT_DETACH", "result": "ok"}},
	}}
	d["status"] = object{
		"phase": "Succeeded", "outcome": "Healed", "summary": "Repaired StaleSubPath (container nginx, volume conf, pod shop/web-0).", "completionTime": "2026-11-26T21:03:02Z",
		"faults": []object{{"code": "StaleSubPath", "state": "Healed"}}, "succeededPath": []object{{"id": 1, "operation": "auto-recover"}},
		"operations": []object{repair},
	}
	return d
}

// TestPictures makes the pictures of docs/ui.md. With KUBEDIAG_GOLDEN it writes them there.
func TestPictures(t *testing.T) {
	for _, p := range []struct{ name, language, scheme, address string }{
		{"now", "en", "light", "/"}, {"fault", "en", "light", "/fault/shop/stalesubpath-5"}, {"nodes", "en", "dark", "/nodes"},
		{"diagnosis", "en", "light", "/diagnosis/shop/web-0-4k2fd"}, {"fault-zh", "zh", "dark", "/fault/shop/stalesubpath-5"},
	} {
		s := newSite(t, p.language)
		s.api.change(func() {
			fuse := mountFault("DisconnectedFUSE", "Now", "Driver", "trainer-3")
			fuse["status"].(object)["summary"], fuse["status"].(object)["node"], fuse["status"].(object)["volume"] = "the FUSE daemon of the volume is gone", "worker-4", "model"
			s.api.faults = []object{mountFault("StaleSubPath", "NextStart", "Safe", "web-0"), fuse}
			s.api.diagnoses = []object{healed(), waiting(hashOf(`boot "b"`), `boot "b"`)}
		})
		s.run(t, chromedp.Navigate(s.origin+p.address), chromedp.WaitVisible("main"))
		s.await(t, `document.querySelector("#live").textContent.startsWith("●")`)
		s.shoot(t, "picture-"+p.name, p.scheme, 1280)
		picture, err := os.ReadFile("../../bin/ui/picture-" + p.name + "-" + p.scheme + "-1280.png")
		if err != nil {
			t.Fatal(err)
		}
		if len(picture) > mostPictureBytes {
			t.Errorf("%s has %d bytes, at most %d", p.name, len(picture), mostPictureBytes)
		}
		if os.Getenv("KUBEDIAG_GOLDEN") != "" {
			if err := os.WriteFile("../../docs/images/ui-"+p.name+".png", picture, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s.checkComplaints(t)
	}
}
