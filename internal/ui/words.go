// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/docs/runbook"
	"kubediag.org/kubediag/internal/fault"
)

// Language is the language of a page. Sentences about findings are in English in each.
type Language string

// English and Chinese are the languages.
const (
	English Language = "en"
	Chinese Language = "zh"
)

// AddLanguage gives a verb the flag --lang. Without it, the locale decides.
func AddLanguage(cmd *cobra.Command, to *Language) {
	*to = localeLanguage(os.Getenv)
	cmd.Flags().Var(to, "lang", "language of a page: "+strings.Join(runbook.Languages(), " or "))
	if err := cmd.RegisterFlagCompletionFunc("lang", cobra.FixedCompletions(runbook.Languages(), cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is not there
	}
}

// localeLanguage is the language of the first variable that is set, as setlocale(3) does.
func localeLanguage(env func(string) string) Language {
	if strings.HasPrefix(cmp.Or(env("LC_ALL"), env("LC_MESSAGES"), env("LANG")), string(Chinese)) {
		return Chinese
	}
	return English
}

// String is the language.
func (l *Language) String() string { return string(*l) }

// Type names the value in the flag's help.
func (*Language) Type() string { return "language" }

// Set takes the value of the flag.
func (l *Language) Set(value string) error {
	if !slices.Contains(runbook.Languages(), value) {
		return errors.New("must be " + strings.Join(runbook.Languages(), " or "))
	}
	*l = Language(value)
	return nil
}

// Tag is the language for a browser.
func (l Language) Tag() string {
	if l == Chinese {
		return "zh-CN"
	}
	return "en"
}

// Title is the title of a fault.
func (l Language) Title(e fault.Entry) string {
	if l == Chinese && e.Chinese.Title != "" {
		return e.Chinese.Title
	}
	return e.Title
}

// Repair is the smallest safe repair of a fault.
func (l Language) Repair(e fault.Entry) string {
	if l == Chinese && e.Chinese.Repair != "" {
		return e.Chinese.Repair
	}
	return e.Repair
}

// Prevention is the way to prevent a fault; empty if its runbook has none.
func (l Language) Prevention(code fault.Code) string {
	text, err := runbook.Prevention(string(code), string(l))
	if err != nil {
		return "" // a code of another version
	}
	return text
}

// Word is a word of a page in the language. A word that has no translation stays.
func (l Language) Word(english string) string {
	if word, ok := chinese[english]; ok && l == Chinese {
		return word
	}
	return english
}

// chinese are the words of pages.
var chinese = map[string]string{
	"Skip to the findings": "跳到结果", "made": "生成于", "Faults": "故障", "Commands": "命令", "Next": "下一步", "By hand, on this node": "在该节点上手工执行",
	"Evidence": "证据", "The same fault": "相同的故障", "Not looked at": "没有看到的部分", "Looked at": "检查范围",
	"The chain": "链路", "only shows something": "只查看，不修改", "repairs, and nothing is lost": "修复，不丢失任何东西", "something is lost": "会有损失",
	"FAULT": "故障", "HURTS": "影响", "HEAL": "修复者", "POD OR DEVICE": "Pod 或设备", "VOLUME": "卷",
	"now": "现在", "terminating": "无法删除", "next start": "下次启动", "detach": "设备 detach", "cleanup": "清理",
	"automatic": "自动", "safe": "安全", "driver": "驱动", "person": "人工",
	"hurts": "影响", "pod": "Pod", "workload": "工作负载", "container": "容器", "volume": "卷", "device": "设备", "mount": "挂载", "holder": "持有者",
	"heal": "修复者", "plan": "计划", "Plan": "计划", "repair": "修复方法", "prevention": "预防", "what is wrong": "问题",
	"source": "来源", "mount of the node": "节点的挂载", "mount inside the volume": "卷内的挂载", "subPath bind": "subPath 绑定",
	"copy in the container": "容器内的副本", "staging path": "暂存路径", "mount in another namespace": "其他命名空间中的挂载",
	"directory of the pod": "Pod 目录", "mounts at one place": "同一位置的挂载", "mounts of the node": "节点的挂载",
	"FAULTS": "故障数", "CAUSE": "原因", "NODE": "节点", "SINCE": "开始于", "paused": "已暂停", "Waits for you": "等待你批准", "Allowed now": "当前允许",
	"Done in the last 12 hours": "最近 12 小时的修复", "POLICY": "策略", "MODE": "模式", "NOW": "当前状态", "REPAIRED": "已修复", "FAILED": "失败",
	"LAST": "最近一次", "BY": "发起者", "WORKLOAD": "工作负载",
	"Now": "现在", "since": "开始于", "node": "节点", "Time line": "时间线", "Lines of the hash": "哈希的内容", "Approve exactly this plan": "批准这个计划",
	"Make a plan, which changes nothing": "制定计划（不做任何改动）", "Carry out exactly this plan": "执行这个计划",
	"Refuse: delete the Diagnosis": "拒绝：删除该 Diagnosis", "OPERATION": "操作", "BEGAN": "开始", "TOOK": "用时", "RESULT": "结果",
	"Nodes": "节点", "To approve": "待批准", "Policies": "策略", "Triggers": "触发器", "live": "实时", "not live since": "已断开，时间",
	"Links": "链路", "Operations": "操作图", "Mounts": "挂载", "BEFORE": "修复前", "AFTER": "修复后", "ACTION": "动作", "MOUNT": "挂载", "POD": "Pod", "SOURCE": "来源",
	"CONTAINERS": "容器", "STATE": "状态", "FAULT CODES": "故障代码", "NEXT WINDOW": "下一个窗口", "TRIGGER": "触发器", "SIGNAL": "信号", "DIAGNOSES": "诊断数",
	"OPERATIONSET": "OperationSet", "succeeded": "成功", "failed": "失败", "not applicable": "不适用", "running": "运行中", "not run": "未执行",
	"path taken": "走过的路径", "all": "全部",
	"not at fault": "没有问题", "broken here": "断在这里", "affected": "受影响",
}
