"""Invents names: persons, cities, teams, titles, identifiers, each spelled in all five languages.

Input: a random generator and the split. Output: `Name`. The training split and the held-out split make names
of disjoint syllables and disjoint list entries, so training saw no held-out name.
"""

import random
from dataclasses import dataclass

from languages import LANGUAGES, Forms, lexicon

# Each syllable in Latin, Hangul, Chinese and Cyrillic letters: a name is spelled alike in all scripts.
SYLLABLES = [
    row.split()
    for row in """ka 카 卡 ка|ro 로 罗 ро|mi 미 米 ми|len 렌 伦 лен|tor 토르 托 тор|vi 비 维 ви|sa 사 萨 са|ben 벤 本 бен|dal 달 达尔 дал|ne 네 内 не
mar 마르 马 мар|lin 린 林 лин|go 고 戈 го|ri 리 里 ри|fa 파 法 фа|nor 노르 诺 нор|be 베 贝 бе|lu 루 卢 лу|ste 스테 斯特 сте|pa 파 帕 па
do 도 多 до|win 윈 温 вин|ha 하 哈 ха|ber 베르 伯 бер|ti 티 蒂 ти|ol 올 奥尔 ол|gar 가르 加尔 гар|den 덴 登 ден|su 수 苏 су|man 만 曼 ман
el 엘 埃尔 эл|ko 코 科 ко|ran 란 兰 ран|zi 지 齐 зи|tem 템 坦 тем|ba 바 巴 ба|lo 로 洛 ло|ni 니 尼 ни|ver 베르 韦尔 вер|da 다 达 да
hol 홀 霍尔 хол|sen 센 森 сен|ma 마 玛 ма|ki 키 基 ки|al 알 阿尔 ал|du 두 杜 ду|fen 펜 芬 фен|ra 라 拉 ра|mo 모 莫 мо|san 산 桑 сан
bri 브리 布里 бри|ton 턴 顿 тон|we 웨 韦 ве|lan 란 朗 лан|pe 페 佩 пе|ga 가 加 га|dor 도르 多尔 дор|no 노 诺 но|ly 리 莉 ли|her 헤르 赫尔 хер
is 이스 伊斯 ис|ce 체 切 че|nu 누 努 ну|te 테 特 те|bor 보르 博尔 бор|am 암 安 ам|le 레 莱 ле|pol 폴 波尔 пол|vo 보 沃 во|cha 차 查 ча""".replace("\n", "|").split("|")
]
HELD_OUT_SYLLABLES = [
    row.split()
    for row in """shu 슈 舒 шу|qua 콰 夸 ква|mel 멜 梅尔 мел|jo 조 乔 джо|tru 트루 特鲁 тру|wen 웬 文 вен|xi 시 希 си|hob 호브 霍布 хоб|yar 야르 亚尔 яр|pim 핌 平 пим
zo 조 佐 зо|gre 그레 格雷 гре|und 운트 温特 унд|fi 피 菲 фи|cor 코르 科尔 кор|sle 슬레 斯莱 сле|ny 뉘 尼娅 ню|ost 오스트 奥斯特 ост|bu 부 布 бу|tal 탈 塔尔 тал""".replace("\n", "|").split("|")
]
# The number of names at the end of each aligned list that are held out.
HELD_OUT_ENTRIES = 6

DECORATIONS: dict[str, dict[str, list[str]]] = {
    "team": {
        "en": ["{n} University", "the University of {n}", "FC {n}", "{n} United", "{n} Tigers"],
        "ko": ["{n} 대학교", "{n} 대학교 농구팀", "FC {n}", "{n} 유나이티드", "{n} 타이거스"],
        "zh": ["{n}大学", "{n}大学篮球队", "{n}足球俱乐部", "{n}联队", "{n}老虎队"],
        "ru": ["«{n}»", "университет {n}", "ФК {n}", "{n} Юнайтед", "«{n} Тайгерс»"],
        "es": ["la Universidad {n}", "la Universidad de {n}", "el {n} FC", "el {n} United", "los Tigres de {n}"],
    },
    "company": {
        "en": ["{n}", "{n} Inc.", "{n} Motors", "{n} Foods", "{n} Bank"],
        "ko": ["{n}", "{n} 주식회사", "{n} 자동차", "{n} 식품", "{n} 은행"],
        "zh": ["{n}", "{n}集团", "{n}汽车", "{n}食品", "{n}银行"],
        "ru": ["{n}", "«{n}»", "{n} Моторс", "«{n} Фуд»", "{n} Банк"],
        "es": ["{n}", "{n} S.A.", "{n} Motores", "Alimentos {n}", "el Banco {n}"],
    },
    "museum": {
        "en": ["the {n} Museum", "{n} Castle", "{n} Zoo", "the {n} Library", "the {n} swimming pool"],
        "ko": ["{n} 박물관", "{n} 성", "{n} 동물원", "{n} 도서관", "{n} 수영장"],
        "zh": ["{n}博物馆", "{n}城堡", "{n}动物园", "{n}图书馆", "{n}游泳池"],
        "ru": ["музей {n}", "замок {n}", "зоопарк {n}", "магазин {n}", "бассейн {n}"],
        "es": ["el museo {n}", "el castillo de {n}", "el zoo de {n}", "el mercado {n}", "el parque {n}"],
    },
    "building": {
        "en": ["{n} Bridge", "{n} Tower", "the {n} Theatre", "{n} Stadium", "{n} Station"],
        "ko": ["{n} 다리", "{n} 타워", "{n} 극장", "{n} 경기장", "{n} 역"],
        "zh": ["{n}大桥", "{n}塔", "{n}剧院", "{n}体育场", "{n}车站"],
        "ru": ["мост {n}", "дворец {n}", "театр {n}", "стадион {n}", "вокзал {n}"],
        "es": ["el puente {n}", "el palacio {n}", "el teatro {n}", "el estadio {n}", "el edificio {n}"],
    },
    "tournament": {
        "en": ["the {n} Cup", "the {n} Open", "the {n} League", "the {n} Race"],
        "ko": ["{n} 컵", "{n} 오픈", "{n} 리그", "{n} 대회"],
        "zh": ["{n}杯", "{n}公开赛", "{n}联赛", "{n}大赛"],
        "ru": ["Кубок {n}", "турнир {n}", "чемпионат {n}", "марафон {n}"],
        "es": ["la Copa {n}", "el Abierto de {n}", "la Liga {n}", "el torneo {n}"],
    },
    "event": {
        "en": ["the {n} chess club", "the {n} choir", "the {n} market", "the {n} reading group"],
        "ko": ["{n} 체스 클럽", "{n} 합창단", "{n} 시장", "{n} 독서회"],
        "zh": ["{n}象棋社", "{n}合唱团", "{n}集市", "{n}读书会"],
        "ru": ["шахматный клуб {n}", "хор {n}", "рынок {n}", "кружок {n}"],
        "es": ["el club de ajedrez {n}", "el coro {n}", "el mercado {n}", "el círculo {n}"],
    },
    "shop": {
        "en": ["{n} Pharmacy", "the {n} restaurant", "Hotel {n}", "Doctor {n}"],
        "ko": ["{n} 약국", "{n} 식당", "{n} 호텔", "{n} 의원"],
        "zh": ["{n}药店", "{n}餐厅", "{n}酒店", "{n}诊所"],
        "ru": ["аптека {n}", "ресторан {n}", "отель {n}", "клиника {n}"],
        "es": ["la farmacia {n}", "el restaurante {n}", "el hotel {n}", "la clínica {n}"],
    },
    "disease": {
        "en": ["{n} fever", "{n} disease", "{n} syndrome", "{n}itis"],
        "ko": ["{n} 열병", "{n}병", "{n} 증후군", "{n}염"],
        "zh": ["{n}热", "{n}病", "{n}综合征", "{n}炎"],
        "ru": ["лихорадка {n}", "болезнь {n}", "синдром {n}", "{n}ит"],
        "es": ["la fiebre {n}", "la enfermedad de {n}", "el síndrome de {n}", "la {n}itis"],
    },
    "product": {
        "en": ["the {n} phone", "the {n} laptop", "the {n} bicycle", "the {n} lamp", "the {n} {m}"],
        "ko": ["{n} 전화기", "{n} 노트북", "{n} 자전거", "{n} 전등", "{n} {m}"],
        "zh": ["{n}手机", "{n}笔记本电脑", "{n}自行车", "{n}台灯", "{n} {m}"],
        "ru": ["телефон {n}", "ноутбук {n}", "велосипед {n}", "фонарь {n}", "{n} {m}"],
        "es": ["el teléfono {n}", "el portátil {n}", "la bicicleta {n}", "la lámpara {n}", "el {n} {m}"],
    },
}
DECORATIONS["university"] = {language: forms[:1] for language, forms in DECORATIONS["team"].items()}
PAIRS = {
    "en": '"{a} and {b}"', "ko": "《{a} 그리고 {b}》", "zh": "《{a}与{b}》", "ru": "«{a} и {b}»", "es": "«{a} y {b}»",
}  # fmt: skip
CODE_WORDS = "get set run load save make scan pack fold zip map join trim list node row key path buf task sum max idx tmp cfg out".split()
LOWER_CASE = {"dish", "creature", "term", "disease"}
TITLES = {"book", "film", "song", "painting"}


@dataclass(frozen=True)
class Name:
    """One named thing.

    `forms`: its full name per language; `short`: the part without decoration; `key`: its identity.
    """

    kind: str
    key: str
    forms: tuple[tuple[str, str], ...]
    short: tuple[tuple[str, str], ...]

    def text(self, language: str, short: bool = False) -> str:
        """The name in a language."""
        return dict(self.short if short else self.forms)[language]


def entries(category: str, held_out: bool) -> list[Forms]:
    """The split's part of an aligned list of names."""
    words = lexicon()[category]
    return words[-HELD_OUT_ENTRIES:] if held_out else words[:-HELD_OUT_ENTRIES]


def invented(rng: random.Random, held_out: bool, counts: tuple[int, ...] = (2, 2, 3)) -> Forms:
    """A capitalised word of random syllables; one time in six in Latin letters in every language."""
    pool = HELD_OUT_SYLLABLES if held_out else SYLLABLES
    rows = [rng.choice(pool) for _ in range(rng.choice(counts))]
    latin, hangul, chinese, cyrillic = ("".join(row[script] for row in rows) for script in range(4))
    forms = {"en": latin.title(), "ko": hangul, "zh": chinese, "ru": cyrillic.title(), "es": latin.title()}
    return forms if rng.random() > 0.17 else dict.fromkeys(LANGUAGES, latin.title())


def person(rng: random.Random, held_out: bool) -> Forms:
    """First and last name, real-sounding or invented."""
    draw = rng.random()
    if draw < 0.2:
        return rng.choice(entries("asian", held_out))
    first = rng.choice(entries("first", held_out)) if draw < 0.8 else invented(rng, held_out, (2,))
    last = rng.choice(entries("last", held_out)) if draw < 0.5 else invented(rng, held_out)
    return {language: first[language] + ("·" if language == "zh" else " ") + last[language] for language in LANGUAGES}


def title(rng: random.Random) -> Forms:
    """A title of two everyday words in quotation marks."""
    words = [word for category in ("ingredient", "material", "weekday", "habitat", "profession") for word in lexicon()[category]]
    a, b = rng.sample(words, 2)
    return {language: PAIRS[language].format(a=a[language], b=b[language]) for language in LANGUAGES}


def name(kind: str, rng: random.Random, held_out: bool) -> Name:
    """A new thing of the given kind, with a name."""
    if kind == "person":
        short = forms = person(rng, held_out)
    elif kind in TITLES and rng.random() < 0.7:
        short = forms = title(rng)
    elif kind == "function":
        word = invented(rng, held_out, (2,))["en"].lower()
        code = rng.choice(["{a}_{w}", "{w}_{a}", "{a}{W}", "{w}.{a}()", "{a}_{w}()"]).format(a=rng.choice(CODE_WORDS), w=word, W=word.title())
        short = forms = dict.fromkeys(LANGUAGES, code)
    else:
        real = kind in ("city", "team", "university", "museum", "building") and rng.random() < 0.35
        short = rng.choice(entries("city", held_out)) if real else invented(rng, held_out)
        if kind in LOWER_CASE and kind != "disease":
            short = {language: text.lower() for language, text in short.items()}
        forms = decorated(kind, short, rng)
    return Name(kind, f"{kind}:{forms['en']}", tuple(forms.items()), tuple(short.items()))


def decorated(kind: str, short: Forms, rng: random.Random) -> Forms:
    """The name with its kind's decoration around it, the same decoration in all languages."""
    if kind not in DECORATIONS:
        return short
    index, model = rng.randrange(len(DECORATIONS[kind]["en"])), rng.choice("ABKRXZ") + str(rng.randrange(1, 99))
    return {language: forms[index].format(n=short[language], m=model) for language, forms in DECORATIONS[kind].items()}
