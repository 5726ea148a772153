# SPDX-FileCopyrightText: The kubediag Authors
# SPDX-License-Identifier: Apache-2.0

# A plugin of sos: copy it to the folder sos/report/plugins of the installed sos. It runs where the program kubediag is in the PATH. The
# bundle has no credentials, and no variables and arguments of pods.
from sos.report.plugins import Plugin, DebianPlugin, IndependentPlugin, RedHatPlugin, UbuntuPlugin


class Kubediag(Plugin, DebianPlugin, IndependentPlugin, RedHatPlugin, UbuntuPlugin):
    """Broken mounts of the pods of this node, as kubediag sees them"""

    short_desc = 'Broken mounts of the pods of a Kubernetes node'
    plugin_name = 'kubediag'
    profiles = ('container', 'storage')
    commands = ('kubediag',)

    def setup(self):
        self.add_cmd_output([
            'kubediag version',
            'kubediag features',
            'kubediag scan --verbose',
            'kubediag holders',
        ], timeout=60)
        self.add_cmd_output('kubediag scan --output=json', suggest_filename='scan.json', stderr=False, timeout=60)
        self.add_cmd_output('kubediag bundle --output=-', suggest_filename='bundle.tar.gz', binary=True, stderr=False,
                            timeout=60)
