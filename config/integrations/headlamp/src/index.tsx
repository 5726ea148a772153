// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// The MountFaults of kubediag in Headlamp: a list, and a section on the page of a pod. It reads only: a repair is made by
// kubectl kubediag run, which shows the plan and asks.

import {
  type DetailsViewSectionProps,
  registerDetailsViewSection,
  registerRoute,
  registerSidebarEntry,
} from '@kinvolk/headlamp-plugin/lib';
import {
  Link,
  NameValueTable,
  SectionBox,
  SimpleTable,
  StatusLabel,
} from '@kinvolk/headlamp-plugin/lib/CommonComponents';
import { makeCustomResourceClass } from '@kinvolk/headlamp-plugin/lib/Crd';

/** The parts of a MountFault that are shown. */
interface FaultStatus {
  code: string;
  impact: string;
  heal: string;
  node: string;
  target?: string;
  pod?: { namespace: string; name: string };
  container?: string;
  volume?: string;
  driver?: string;
  since: string;
  summary?: string;
  plan?: string;
  evidence?: string[];
}

const MountFault = makeCustomResourceClass({
  apiInfo: [{ group: 'diagnosis.kubediag.org', version: 'v1' }],
  isNamespaced: true,
  kind: 'MountFault',
  singularName: 'mountfault',
  pluralName: 'mountfaults',
});

/** Impacts, the worst first. */
const impacts = ['Now', 'Terminating', 'NextStart', 'Detach', 'Cleanup'];

function rank(s: FaultStatus): number {
  const at = impacts.indexOf(s.impact);
  return at < 0 ? impacts.length : at;
}

function statusOf(object: { jsonData?: any }): FaultStatus {
  return object.jsonData?.status ?? { code: '', impact: '', heal: '', node: '', since: '' };
}

/** The faults of a namespace, or of all, the worst and the oldest first. null: they are being read. */
function useFaults(namespace?: string): [FaultStatus[] | null, string | null] {
  const [list, error] = MountFault.useList({ namespace });
  if (error) {
    const why = error.status === 404 ? 'kubediag is not installed in this cluster' : error.message;
    return [[], why];
  }
  if (!list) {
    return [null, null];
  }
  const found = list.map(statusOf);
  found.sort((a, b) => rank(a) - rank(b) || a.since.localeCompare(b.since));
  return [found, null];
}

function Impact({ of }: { of: FaultStatus }) {
  const colour = of.impact === 'Now' || of.impact === 'Terminating' ? 'error' : 'warning';
  return <StatusLabel status={colour}>{of.impact}</StatusLabel>;
}

function Subject({ of }: { of: FaultStatus }) {
  if (!of.pod) {
    return <>{of.target ?? of.node}</>;
  }
  return (
    <Link routeName="pod" params={{ namespace: of.pod.namespace, name: of.pod.name }}>
      {of.pod.namespace}/{of.pod.name}
    </Link>
  );
}

function FaultList() {
  const [faults, error] = useFaults();
  return (
    <SectionBox title="Mount faults">
      <SimpleTable
        data={faults}
        errorMessage={error}
        emptyMessage="No MountFault is known. It counts only for nodes with an agent: kubectl kubediag doctor"
        rowsPerPage={[25, 100]}
        columns={[
          { label: 'Fault', getter: (f: FaultStatus) => f.code, sort: (f: FaultStatus) => f.code },
          { label: 'Hurts', getter: (f: FaultStatus) => <Impact of={f} />, sort: rank },
          { label: 'Heal', getter: (f: FaultStatus) => f.heal, sort: (f: FaultStatus) => f.heal },
          { label: 'Pod or target', getter: (f: FaultStatus) => <Subject of={f} /> },
          { label: 'Volume', getter: (f: FaultStatus) => f.volume ?? '' },
          { label: 'Node', getter: (f: FaultStatus) => f.node, sort: (f: FaultStatus) => f.node },
          { label: 'Since', getter: (f: FaultStatus) => f.since, sort: (f: FaultStatus) => f.since },
          { label: 'What is wrong', getter: (f: FaultStatus) => f.summary ?? '' },
        ]}
      />
    </SectionBox>
  );
}

function PodFaults({ namespace, name }: { namespace: string; name: string }) {
  const [faults, error] = useFaults(namespace);
  const own = (faults ?? []).filter(f => f.pod?.name === name && f.pod.namespace === namespace);
  if (error || own.length === 0) {
    return null; // a page of a pod is not the place to say that kubediag is not there
  }
  return (
    <SectionBox title="Mount faults">
      {own.map(f => (
        <NameValueTable
          key={[f.code, f.container, f.volume].join('/')}
          rows={[
            { name: 'Fault', value: f.code },
            { name: 'Hurts', value: <Impact of={f} /> },
            { name: 'What is wrong', value: f.summary ?? '' },
            { name: 'Container', value: f.container ?? '', hide: !f.container },
            { name: 'Volume', value: f.volume ?? '', hide: !f.volume },
            { name: 'Driver', value: f.driver ?? '', hide: !f.driver },
            { name: 'Plan', value: f.plan ?? '', hide: !f.plan },
            { name: 'Evidence', value: (f.evidence ?? []).join('\n'), hide: !f.evidence },
            { name: 'Plan and repair', value: `kubectl kubediag run pod/${name} -n ${namespace}` },
          ]}
        />
      ))}
    </SectionBox>
  );
}

registerSidebarEntry({
  parent: null,
  name: 'kubediag',
  label: 'Mount faults',
  url: '/kubediag',
  icon: 'mdi:harddisk',
});
registerRoute({
  path: '/kubediag',
  sidebar: 'kubediag',
  name: 'kubediag',
  exact: true,
  component: () => <FaultList />,
});
registerDetailsViewSection(({ resource }: DetailsViewSectionProps) => {
  const name = resource?.metadata?.name;
  const namespace = resource?.metadata?.namespace;
  return resource?.kind === 'Pod' && name && namespace ? (
    <PodFaults namespace={namespace} name={name} />
  ) : null;
});
