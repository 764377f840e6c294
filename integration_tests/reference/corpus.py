"""Texts for training the small tokenizer, written for this purpose, one string per paragraph. They contain
the words of the cases."""

CORPUS = [
    # English
    "Mars is often called the Red Planet because iron in its soil has rusted. It has two small moons and the tallest volcano of the solar system.",
    "Venus is close to the Earth in size, but its air is hot and heavy. Jupiter is the largest planet; its red spot is a storm.",
    "The capital of France is Paris. The capital of China is Beijing. The capital of Korea is Seoul, and the capital of Russia is Moscow.",
    "A battery gives less voltage when the temperature falls. Cold slows the chemistry; heat makes it age. Keep the battery between ten and thirty degrees.",
    "The river rises in the mountains, passes three old bridges, and reaches the sea after a long way through fields of wheat and barley.",
    "Which of these documents answers the question? Read the query, then the document, and say whether it is relevant.",
    "The kitchen smelled of bread. She cut the tomatoes, added garlic and basil, and let the sauce cook for an hour on a low flame.",
    "An orchestra needs time to tune. The violins begin, the flutes follow, and the drums wait for their turn at the end of the concert.",
    "Gravity is a force that pulls two bodies together. It gives weight to things and keeps the planets on their way around the sun.",
    "The library opens at nine and closes at six. On Saturdays it opens at ten. It is closed on public holidays and in the first week of August.",
    "He was the head coach of the football team of the university for four seasons, and he won more games than he lost.",
    "Please write to the landlord before the end of the month. The insurance covers water, fire and theft, but not the garden.",
    "The court found no evidence for the claim. The council will vote on the budget in the spring, and the treaty comes after that.",
    "A satellite in orbit sends its signal to the station on the ground. The telescope looks at a galaxy far away.",
    "Birds build a nest of grass and feathers, lay their eggs and feed the young. In autumn they fly south over the ocean.",
    "To be or not to be is a question; to answer it with yes or with no is another. Nobody knows. You don't, I don't, they've never known.",
    # Korean
    "서울은 대한민국의 수도이며 한강이 도시를 가로질러 흐른다. 많은 사람들이 이 도시에서 일하고 공부한다.",
    "그는 2003년부터 2006년까지 대학교의 미식축구 감독이었다. 팀은 네 시즌 동안 세 번 볼 게임에 나갔다.",
    "털사 대학교는 오클라호마주에 있는 사립 대학교이다. 미식축구 감독은 누구였나요? 감독은 스티브 크래그소프였다.",
    "김치는 배추와 고춧가루로 만드는 한국의 전통 음식이다. 겨울이 오기 전에 많은 가족이 함께 김치를 담근다.",
    "배터리의 전압은 온도에 따라 변한다. 추우면 전압이 낮아지고 더우면 수명이 줄어든다.",
    "이 문서는 질문에 대한 답을 담고 있나요? 네, 그렇습니다. 아니요, 그렇지 않습니다.",
    # Chinese
    "中国的首都是北京。北京是一座历史悠久的城市，有很多古老的建筑和公园。",
    "火星被称为红色星球，因为它的土壤中含有氧化铁。木星是太阳系中最大的行星。",
    "电池的电压随温度变化。温度低的时候，电压下降；温度高的时候，电池老化得更快。",
    "请问这篇文章是否回答了问题？是的，它回答了问题。不，它没有回答问题。",
    "长江是中国最长的河流，从西向东流过很多省份，最后流入东海。",
    # Russian
    "Москва является столицей России и крупнейшим городом страны. Она стоит на Москве-реке.",
    "Марс называют красной планетой, потому что в его почве много железа. Юпитер самая большая планета солнечной системы.",
    "Напряжение батареи зависит от температуры. На холоде оно падает, а в жару батарея быстрее стареет.",
    "Отвечает ли этот документ на вопрос? Да, отвечает. Нет, не отвечает. Река течёт с гор к морю.",
    # Arabic
    "القاهرة هي عاصمة مصر وأكبر مدنها، وتقع على نهر النيل. يعيش فيها ملايين الناس.",
    "المريخ هو الكوكب الأحمر لأن تربته تحتوي على الحديد. المشتري هو أكبر كوكب في المجموعة الشمسية.",
    "هل تجيب هذه الوثيقة عن السؤال؟ نعم، هي تجيب عن السؤال. لا، هي لا تجيب عن السؤال.",
    # Code and marks
    "def binary_search(items, target):\n    low, high = 0, len(items) - 1\n    while low <= high:\n        middle = (low + high) // 2\n        if items[middle] == target:\n            return middle\n    return None\n",
    "fn main() {\n    let numbers: Vec<u32> = (0..10).collect();\n    for number in &numbers {\n        println!(\"{number}\");\n    }\n}\n",
    "SELECT name, count(*) FROM documents WHERE score > 0.5 GROUP BY name ORDER BY count(*) DESC;\n",
    '{"query": "text", "documents": ["first", "second"], "top_n": 3, "return_documents": true}\n',
    "for (int i = 0; i < n; i++) {\n\tsum += values[i] * weights[i];\n}\nreturn sum;\n",
    "A list:\n- one\n- two\n\n- three\r\n- four\r\n\r\nEnd.   Three spaces;  two spaces. 😀 🚀 😀 👍 — “quotes” … 10 % of 2,000 €\n",
]
